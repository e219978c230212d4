/* A Cortex-M with an FPU, in QEMU: it starts, prints by semihosting, and counts instructions. Your board has a start of
 * its own, and a serial port. */
#include "board.h"

extern uint32_t data_begin[], data_end[], data_source[], bss_begin[], bss_end[], stack_top[];
int main(void);

/* Ask QEMU, or a debugger, to do something. */
static void call_host(int what, const void *argument)
{
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void quit(uint32_t status)
{
    const uint32_t reason[2] = {0x20026, status};
    call_host(0x20, reason);
    for (;;) continue;
}

void print(const char *text) { call_host(4, text); }

void print_number(double value, int decimals)
{
    char text[32], *p = text + sizeof text - 1;
    if (!(value >= 0)) {
        print("NAN");
        return;
    }
    for (int i = 0; i < decimals; i++) value *= 10;
    uint64_t digits = (uint64_t)(value + 0.5);
    *p = 0;
    for (int i = 0; i <= decimals || digits; i++, digits /= 10) {
        if (i == decimals && i)
            *--p = '.';
        *--p = (char)('0' + digits % 10);
    }
    print(p);
}

uint32_t read_clock(void) { return *(volatile uint32_t *)0xE000E018; }

/* The clock, SysTick, counts down at 25 MHz, and in QEMU an instruction takes 1 ns. On your board it counts cycles. */
uint32_t count_instructions(uint32_t since) { return ((since - read_clock()) & 0xFFFFFF) * 40; }

void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the FPU */
    __asm__ volatile("dsb\n\tisb");
    for (uint32_t *p = data_begin, *q = data_source; p < data_end;) *p++ = *q++;
    for (uint32_t *p = bss_begin; p < bss_end;) *p++ = 0;
    *(volatile uint32_t *)0xE000E014 = 0xFFFFFF; /* the clock */
    *(volatile uint32_t *)0xE000E010 = 5;
    quit(main());
}

static void fault(void)
{
    print("fault\n");
    quit(1);
}

static void *const vectors[] __attribute__((section(".vectors"), used)) = {stack_top, reset, fault, fault};
