/* What the test programs share. */
#include <blockwright.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int checks;

/* With NO_URING in the environment the kernel refuses io_uring, so that the library uses threads. valgrind needs that: it runs one thread at a
   time, and does not know that io_uring_enter waits for another one. */
__attribute__((constructor)) static void refuse_uring(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    if (getenv("NO_URING") == NULL)
        return;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("seccomp");
        exit(1);
    }
}

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
