/* What a program must not do is an error. argv[1]: a folder. */
#include "common.h"
#include <pthread.h>

static bw_error err;

static void *use(void *arg) {
    bw_volume v = *(bw_volume *)arg;
    bw_error own;
    bw_status last = BW_OK;
    /* Until the main thread closes the volume; from then on each call is refused. */
    for (int i = 0;; i++) {
        char path[32] = "";
        bw_file f;
        snprintf(path, sizeof path, "/t%d", i % 50);
        last = bw_file_open(v, path, BW_WRITE | BW_CREATE, 0600, &f, &own);
        if (last != BW_OK)
            break;
        bw_status wrote = bw_file_write(f, 0, path, sizeof path, NULL, &own);
        if (wrote != BW_OK && wrote != BW_STALE)
            return (void *)"a write";
        if (bw_file_close(f, &own) != BW_OK)
            return (void *)"a close";
    }
    return last == BW_BAD_HANDLE || last == BW_STALE ? NULL : (void *)"an open";
}

static void *close_it(void *arg) {
    bw_error own;
    return bw_volume_close(*(bw_volume *)arg, &own) == BW_OK ? NULL : arg;
}

int main(int argc, char **argv) {
    const char *image = in_dir(argv[1], "misuse.img");
    bw_make_options make = {.struct_size = sizeof make, .bytes = 16 << 20};
    bw_open_options options = {.struct_size = sizeof options};
    bw_volume v, other, null_volume = {0}, invented = {0x1234567801000000};
    bw_file f, null_file = {0};
    bw_dir d, null_dir = {0};
    bw_report report = {0};
    bw_stat st;
    bw_dir_entry entry;
    size_t n;
    char buffer[8];
    CHECK(argc == 2);
    OK(bw_make(image, &make, NULL, 0, NULL, &err));

    /* Null. */
    EXPECT(BW_NULL, bw_volume_open(NULL, NULL, &v, &err));
    EXPECT(BW_NULL, bw_volume_open(image, NULL, NULL, &err));
    CHECK(strstr(err.message, "volume"));
    EXPECT(BW_BAD_HANDLE, bw_volume_sync(null_volume, &err));
    EXPECT(BW_BAD_HANDLE, bw_volume_close(null_volume, &err));
    EXPECT(BW_BAD_HANDLE, bw_file_sync(null_file, &err));
    EXPECT(BW_BAD_HANDLE, bw_file_close(null_file, &err));
    EXPECT(BW_BAD_HANDLE, bw_dir_next(null_dir, &entry, &err));
    EXPECT(BW_BAD_HANDLE, bw_dir_close(null_dir, &err));
    EXPECT(BW_BAD_HANDLE, bw_report_close(report, &err));
    EXPECT(BW_BAD_HANDLE, bw_volume_sync(invented, &err));
    CHECK(bw_volume_sync(null_volume, NULL) == BW_BAD_HANDLE);

    /* Structures and flags of another version. */
    /* Nothing behind the size of a shorter structure is there. */
    size_t *shorter = malloc(sizeof *shorter);
    *shorter = sizeof *shorter;
    memset(&err, 0xff, sizeof err);
    EXPECT(BW_MISUSE, bw_volume_open(image, (const bw_open_options *)(const void *)shorter, &v, &err));
    EXPECT(BW_MISUSE, bw_volume_open_device((const bw_device *)(const void *)shorter, NULL, &v, &err));
    free(shorter);
    options.struct_size = 8;
    EXPECT(BW_MISUSE, bw_volume_open(image, &options, &v, &err));
    options.struct_size = sizeof options;
    options.flags = 1u << 30;
    EXPECT(BW_MISUSE, bw_volume_open(image, &options, &v, &err));
    options.flags = 0;
    options.place.offset = 3;
    EXPECT(BW_INVALID, bw_volume_open(image, &options, &v, &err));
    make.format = 77;
    EXPECT(BW_MISUSE, bw_make(image, &make, NULL, 0, NULL, &err));
    make.format = 0;
    EXPECT(BW_NULL, bw_make(image, &make, NULL, 1, NULL, &err));
    bw_source source = {.kind = BW_SOURCE_TAR_FD, .fd = -1};
    EXPECT(BW_MISUSE, bw_make(image, &make, &source, 1, NULL, &err));
    source.fd = 987;
    CHECK(bw_make(image, &make, &source, 1, NULL, &err) != BW_OK);
    source.kind = 9;
    EXPECT(BW_MISUSE, bw_make(image, &make, &source, 1, NULL, &err));
    EXPECT(BW_MISUSE, bw_resize(image, 5, BW_RESIZE_FILL, NULL, NULL, &err));

    /* Files that are no images. */
    EXPECT(BW_NOT_FOUND, bw_volume_open(in_dir(argv[1], "none.img"), NULL, &v, &err));
    CHECK(v.id == 0 && err.os_errno == ENOENT && strstr(err.message, "none.img"));
    FILE *junk = fopen(in_dir(argv[1], "junk.img"), "w");
    for (int i = 0; i < 65536; i++)
        fputc("junk"[i % 4], junk);
    fclose(junk);
    EXPECT(BW_UNSUPPORTED_FEATURE, bw_volume_open(in_dir(argv[1], "junk.img"), NULL, &v, &err));
    CHECK(bw_check(in_dir(argv[1], "junk.img"), NULL, &report, &err) != BW_OK && report.id == 0);

    /* Closed, closed twice, and what is open on a closed volume. */
    OK(bw_volume_open(image, NULL, &v, &err));
    EXPECT(BW_BUSY, bw_volume_open(image, NULL, &other, &err));
    EXPECT(BW_MISUSE, bw_file_open(v, "/f", 1u << 20, 0, &f, &err));
    EXPECT(BW_NULL, bw_file_open(v, NULL, BW_READ, 0, &f, &err));
    EXPECT(BW_IS_DIRECTORY, bw_file_open(v, "/", BW_WRITE, 0, &f, &err));
    OK(bw_file_open(v, "/f", BW_READ | BW_WRITE | BW_CREATE, 0600, &f, &err));
    EXPECT(BW_NULL, bw_file_write(f, 0, NULL, 1, NULL, &err));
    EXPECT(BW_NULL, bw_file_read(f, 0, NULL, 1, &n, &err));
    EXPECT(BW_NULL, bw_file_read(f, 0, buffer, 1, NULL, &err));
    EXPECT(BW_MISUSE, bw_file_read(f, 0, buffer, (size_t)-1, &n, &err));
    CHECK(bw_file_write(f, (uint64_t)-1, "x", 1, NULL, &err) != BW_OK);
    EXPECT(BW_MISUSE, bw_mknod(v, "/n", 99, 0, 0, &err));
    bw_time wrong = {0, 1000000000, 0};
    EXPECT(BW_MISUSE, bw_set_times(v, "/f", &wrong, NULL, 0, &err));
    EXPECT(BW_NOT_DIRECTORY, bw_dir_open(v, "/f", &d, &err));
    /* A number of one kind is none of another. */
    EXPECT(BW_BAD_HANDLE, bw_file_sync((bw_file){v.id}, &err));
    EXPECT(BW_BAD_HANDLE, bw_volume_sync((bw_volume){f.id}, &err));
    OK(bw_dir_open(v, "/", &d, &err));
    OK(bw_volume_close(v, &err));
    EXPECT(BW_BAD_HANDLE, bw_volume_close(v, &err));
    EXPECT(BW_BAD_HANDLE, bw_stat_path(v, "/", &st, &err));
    EXPECT(BW_STALE, bw_file_write(f, 0, "x", 1, NULL, &err));
    EXPECT(BW_STALE, bw_file_sync(f, &err));
    OK(bw_file_close(f, &err));
    EXPECT(BW_BAD_HANDLE, bw_file_close(f, &err));
    EXPECT(BW_BAD_HANDLE, bw_file_read(f, 0, buffer, 1, &n, &err));
    OK(bw_dir_close(d, &err));
    EXPECT(BW_BAD_HANDLE, bw_dir_close(d, &err));

    /* Handles are for all threads: three use a volume while a fourth closes it. */
    OK(bw_volume_open(image, NULL, &v, &err));
    pthread_t threads[4];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, use, &v) == 0);
    for (;;) {
        /* Not before they have begun. */
        if (bw_stat_path(v, "/t20", &st, &err) == BW_OK)
            break;
    }
    CHECK(pthread_create(&threads[3], NULL, close_it, &v) == 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        CHECK(pthread_join(threads[i], &failed) == 0);
        CHECK(failed == NULL);
    }
    EXPECT(BW_BAD_HANDLE, bw_volume_close(v, &err));
    OK(bw_check(image, NULL, &report, &err));
    bw_check_summary summary;
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.clean);
    bw_issue issue;
    EXPECT(BW_MISUSE, bw_report_issue(report, 0, &issue, &err));
    OK(bw_report_close(report, &err));
    EXPECT(BW_BAD_HANDLE, bw_report_close(report, &err));
    EXPECT(BW_BAD_HANDLE, bw_report_summary(report, &summary, &err));
    return done("misuse");
}
