/* What the test programs share. */
#include <blockwright.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks;

#define CHECK(what)                                                                                                                  \
    do {                                                                                                                             \
        checks++;                                                                                                                    \
        if (!(what)) {                                                                                                               \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);                                                     \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)

/* The call returns this status, and the error structure says the same. */
#define EXPECT(status_, call)                                                                                                        \
    do {                                                                                                                             \
        bw_status got_ = (call);                                                                                                     \
        checks++;                                                                                                                    \
        if (got_ != (status_)) {                                                                                                     \
            fprintf(stderr, "%s:%d: %s: %s, not %s: %s\n", __FILE__, __LINE__, #call, bw_status_name(got_), #status_, err.message);  \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
        CHECK(err.status == got_ && (got_ == BW_OK) == (err.message[0] == 0));                                                       \
    } while (0)

#define OK(call) EXPECT(BW_OK, call)

static inline const char *in_dir(const char *dir, const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static inline int done(const char *program) {
    printf("%s: %d checks\n", program, checks);
    return 0;
}
