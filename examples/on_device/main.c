/* A net that reads digits meets a new writer. It reads 260 new digits, learns from 100 others, and reads again. */
#include "board.h"
#include "digits.h"
#include "net.c"

enum { TRAINING = 100, PASSES = 5 };

static float saved[NET_STATE]; /* on your board: pages of flash, which a driver writes */

/* The pixels as the net knows them, from 0 to 1. */
static const float *read_image(int i)
{
    static float x[64];
    for (int k = 0; k < 64; k++) x[k] = images[i][k] / 255.0f;
    return x;
}

/* Print how many images are read right, of those that the training does not see. */
static void test(const char *when)
{
    int right = 0;
    for (int i = TRAINING; i < IMAGES; i++) {
        float scores[10];
        int best = 0;
        net_predict(read_image(i), scores);
        for (int k = 1; k < 10; k++)
            if (scores[k] > scores[best])
                best = k;
        right += best == digits[i];
    }
    print(when);
    print_number(right, 0);
    print(" of ");
    print_number(IMAGES - TRAINING, 0);
    print(" right\n");
}

int main(void)
{
    uint32_t instructions = 0;
    net_init();
    test("before training:      ");
    for (int pass = 1; pass <= PASSES; pass++) {
        double loss = 0;
        for (int i = 0; i < TRAINING; i++) {
            const float *x = read_image(i);
            const int32_t y = digits[i];
            const uint32_t start = read_clock();
            loss += net_train(x, &y);
            instructions = count_instructions(start);
        }
        print("pass ");
        print_number(pass, 0);
        print(": loss ");
        print_number(loss / TRAINING, 8);
        print("\n");
    }
    test("after training:       ");
    print("instructions a step: ");
    print_number(instructions, 0);
    print("\n");

    net_state(saved, 1);
    net_init(); /* as after a restart */
    net_state(saved, 0);
    test("with the saved state: ");
    return 0;
}
