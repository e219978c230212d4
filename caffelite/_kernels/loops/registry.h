/* How the files of loops/ publish their loops: each adds its loops to one table when the module is loaded. */
#ifndef CAFFELITE_REGISTRY_H
#define CAFFELITE_REGISTRY_H

#define APART __attribute__((noinline))
#define AT_LOAD __attribute__((constructor))

enum { MAX_LOOPS = 128 };

typedef struct {
    const char *name;
    const void *address[3]; /* NULL for a type without a loop */
} Published;

extern Published published[MAX_LOOPS];
extern int published_count;

static inline void publish_addresses(const char *name, const void *first, const void *second, const void *third)
{
    if (published_count < MAX_LOOPS)
        published[published_count++] = (Published){name, {first, second, third}};
}

#endif
