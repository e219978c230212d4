/* What the program needs from a board. */
#include <stdint.h>

void print(const char *text);
void print_number(double value, int decimals);
uint32_t read_clock(void);
uint32_t count_instructions(uint32_t since);
