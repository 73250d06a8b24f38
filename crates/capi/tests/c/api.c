/* Every function once, on both formats. argv[1]: a folder; argv[2]: a directory tree; argv[3]: a tar file. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static bw_error err;
static int told;

static int tell(void *user, uint32_t step, uint64_t done_, uint64_t total) {
    (void)done_;
    (void)total;
    CHECK(user == &told && step <= BW_STEP_FINISHING);
    /* Steps come from several threads. */
    __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
    return 0;
}

static void files(bw_volume v) {
    bw_file f, copy;
    size_t n = 99;
    uint64_t at = 0;
    char buffer[64];
    bw_stat st;
    OK(bw_file_open(v, "/f", BW_READ | BW_WRITE | BW_CREATE_NEW, 0640, &f, &err));
    EXPECT(BW_EXISTS, bw_file_open(v, "/f", BW_WRITE | BW_CREATE_NEW, 0640, &copy, &err));
    CHECK(copy.id == 0 && err.os_errno == EEXIST && strstr(err.message, "/f"));
    OK(bw_file_write(f, 0, "hello", 5, NULL, &err));
    OK(bw_file_write(f, 5, " world", 6, &n, &err));
    CHECK(n == 6);
    OK(bw_file_append(f, "!", 1, &at, &err));
    CHECK(at == 11);
    OK(bw_file_read(f, 0, buffer, sizeof buffer, &n, &err));
    CHECK(n == 12 && memcmp(buffer, "hello world!", 12) == 0);
    OK(bw_file_read(f, 12, buffer, sizeof buffer, &n, &err));
    CHECK(n == 0);
    OK(bw_file_stat(f, &st, &err));
    CHECK(st.size == 12 && st.mode == 0100640 && st.kind == BW_TYPE_REGULAR && st.nlink == 1);
    OK(bw_file_sync(f, &err));
    OK(bw_file_sync_data(f, &err));
    OK(bw_file_truncate(f, 1 << 20, &err));
    OK(bw_file_allocate(f, 0, 1 << 20, &err));
    OK(bw_file_write(f, 1 << 19, "x", 1, NULL, &err));
    OK(bw_file_punch_hole(f, 0, 1 << 16, &err));
    OK(bw_file_seek_data(f, 0, &at, &err));
    CHECK(at >= 1 << 16 && at <= 1 << 19);
    OK(bw_file_seek_hole(f, 0, &at, &err));
    CHECK(at == 0);
    EXPECT(BW_NO_DATA, bw_file_seek_data(f, 1 << 21, &at, &err));
    OK(bw_file_open(v, "/copy", BW_READ | BW_WRITE | BW_CREATE, 0600, &copy, &err));
    OK(bw_file_copy_range(f, 1 << 19, copy, 0, 4096, &at, &err));
    CHECK(at == 4096);
    OK(bw_file_read(copy, 0, buffer, 2, &n, &err));
    CHECK(n == 2 && buffer[0] == 'x' && buffer[1] == 0);
    OK(bw_file_close(copy, &err));
    OK(bw_file_close(f, &err));
    OK(bw_file_open(v, "/f", BW_READ, 0, &f, &err));
    EXPECT(BW_ACCESS_DENIED, bw_file_write(f, 0, "x", 1, NULL, &err));
    OK(bw_file_close(f, &err));
    OK(bw_file_open(v, "/log", BW_APPEND | BW_CREATE | BW_SYNC, 0600, &f, &err));
    OK(bw_file_write(f, 0, "ab", 2, NULL, &err));
    OK(bw_file_write(f, 0, "cd", 2, NULL, &err));
    OK(bw_file_close(f, &err));
    OK(bw_stat_path(v, "/log", &st, &err));
    CHECK(st.size == 4);
}

static void names(bw_volume v) {
    bw_stat st;
    bw_dir d;
    bw_dir_entry entry;
    char buffer[64];
    size_t n;
    int seen = 0;
    OK(bw_mkdir(v, "/d", 0750, &err));
    OK(bw_mkdir_all(v, "/d/e/f", &err));
    OK(bw_symlink(v, "/d/e", "/d/link", &err));
    OK(bw_readlink(v, "/d/link", buffer, sizeof buffer, &n, &err));
    CHECK(n == 5 && strcmp(buffer, "/d/e") == 0);
    EXPECT(BW_RANGE, bw_readlink(v, "/d/link", buffer, 3, &n, &err));
    CHECK(n == 5);
    OK(bw_link(v, "/f", "/d/hard", &err));
    OK(bw_stat_path(v, "/d/hard", &st, &err));
    CHECK(st.nlink == 2);
    OK(bw_mknod(v, "/d/null", BW_TYPE_CHAR_DEVICE, 0666, 0x103, &err));
    OK(bw_lstat_path(v, "/d/null", &st, &err));
    CHECK(st.kind == BW_TYPE_CHAR_DEVICE && st.rdev == 0x103);
    OK(bw_dir_open(v, "/d", &d, &err));
    while (bw_dir_next(d, &entry, &err) == BW_OK) {
        seen++;
        CHECK(strlen(entry.name) == entry.name_bytes && entry.ino != 0);
        CHECK(strcmp(entry.name, "link") != 0 || entry.kind == BW_TYPE_SYMLINK);
    }
    CHECK(err.status == BW_END && seen == 4);
    OK(bw_dir_close(d, &err));
    EXPECT(BW_EXISTS, bw_rename(v, "/d/null", "/d/hard", BW_RENAME_NO_REPLACE, &err));
    OK(bw_rename(v, "/d/null", "/d/hard", BW_RENAME_EXCHANGE, &err));
    OK(bw_rename(v, "/d/null", "/d/moved", BW_RENAME_REPLACE, &err));
    EXPECT(BW_NOT_FOUND, bw_lstat_path(v, "/d/null", &st, &err));
    EXPECT(BW_NOT_EMPTY, bw_rmdir(v, "/d", &err));
    OK(bw_rmdir(v, "/d/e/f", &err));
    OK(bw_unlink(v, "/d/moved", &err));
    OK(bw_remove_all(v, "/d", &err));
}

/* An entry that was removed after it was fetched is not one any more. Without `filetype` its kind must be asked for. */
static void removed_meanwhile(const char *path, uint32_t format) {
    bw_make_options make = {.struct_size = sizeof make, .bytes = 64 << 20, .format = format};
    bw_volume v;
    bw_dir d;
    bw_dir_entry entry;
    char name[32];
    int seen = 1;
    if (format == BW_MAKE_EXT4)
        make.features = "^filetype";
    OK(bw_make(path, &make, NULL, 0, NULL, &err));
    OK(bw_volume_open(path, NULL, &v, &err));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "/d/%d", i);
        OK(bw_mkdir_all(v, name, &err));
    }
    OK(bw_dir_open(v, "/d", &d, &err));
    OK(bw_dir_next(d, &entry, &err));
    for (int i = 0; i < 20; i += 2) {
        snprintf(name, sizeof name, "/d/%d", i);
        OK(bw_rmdir(v, name, &err));
    }
    while (bw_dir_next(d, &entry, &err) == BW_OK) {
        seen++;
        CHECK(entry.kind == BW_TYPE_DIRECTORY);
    }
    CHECK(err.status == BW_END && seen >= 10);
    OK(bw_dir_close(d, &err));
    OK(bw_volume_close(v, &err));
}

static void attributes(bw_volume v) {
    bw_stat st;
    bw_time t = {-5, 250000000, 0};
    char buffer[64];
    size_t n;
    OK(bw_chmod(v, "/f", 04711, &err));
    OK(bw_chown(v, "/f", 1000, BW_KEEP_ID, &err));
    OK(bw_chown(v, "/f", BW_KEEP_ID, 70000, &err));
    OK(bw_chmod(v, "/f", 04711, &err));
    OK(bw_set_times(v, "/f", NULL, &t, 0, &err));
    OK(bw_stat_path(v, "/f", &st, &err));
    CHECK(st.mode == 0104711 && st.uid == 1000 && st.gid == 70000);
    CHECK(st.mtime.seconds == -5 && st.mtime.nanoseconds == 250000000 && st.atime.seconds > 0);
    OK(bw_symlink(v, "/f", "/l", &err));
    OK(bw_lchown(v, "/l", 7, 8, &err));
    OK(bw_set_times(v, "/l", &t, &t, BW_NO_FOLLOW, &err));
    OK(bw_lstat_path(v, "/l", &st, &err));
    CHECK(st.uid == 7 && st.gid == 8 && st.atime.seconds == -5);
    OK(bw_set_xattr(v, "/f", "user.note", "value", 5, BW_XATTR_CREATE, &err));
    EXPECT(BW_EXISTS, bw_set_xattr(v, "/f", "user.note", "v", 1, BW_XATTR_CREATE, &err));
    EXPECT(BW_NO_ATTRIBUTE, bw_set_xattr(v, "/f", "user.none", "v", 1, BW_XATTR_REPLACE, &err));
    OK(bw_set_xattr(v, "/f", "user.empty", NULL, 0, 0, &err));
    OK(bw_get_xattr(v, "/f", "user.note", NULL, 0, &n, &err));
    CHECK(n == 5);
    OK(bw_get_xattr(v, "/f", "user.note", buffer, sizeof buffer, &n, &err));
    CHECK(n == 5 && memcmp(buffer, "value", 5) == 0);
    EXPECT(BW_RANGE, bw_get_xattr(v, "/f", "user.note", buffer, 4, &n, &err));
    OK(bw_list_xattr(v, "/f", buffer, sizeof buffer, &n, &err));
    CHECK(n == 21 && memcmp(buffer, "user.empty\0user.note", 21) == 0);
    OK(bw_remove_xattr(v, "/f", "user.note", &err));
    EXPECT(BW_NO_ATTRIBUTE, bw_get_xattr(v, "/f", "user.note", NULL, 0, &n, &err));
}

static void whole(const char *image, uint32_t format, const char *tree, const char *tar) {
    bw_make_options make = {.struct_size = sizeof make, .format = format, .flags = BW_MAKE_AUTO | BW_MAKE_OWNER | BW_MAKE_EPOCH};
    bw_source sources[2] = {{.kind = BW_SOURCE_PATH, .path = tree}, {.kind = BW_SOURCE_TAR_FD}};
    bw_made made;
    bw_volume v;
    bw_volume_info info;
    bw_open_options open_options = {.struct_size = sizeof open_options, .flags = BW_OPEN_READ_ONLY, .cache_bytes = 4 << 20};
    bw_report report;
    bw_check_options check = {.struct_size = sizeof check};
    bw_check_summary summary;
    bw_resized resized;
    bw_stat st;
    bw_file f;
    char text[64];
    size_t n;
    make.bytes = 8 << 20;
    make.epoch = 1700000000;
    make.uid = 5;
    make.gid = 6;
    make.label = "from C";
    make.progress = tell;
    make.user = &told;
    told = 0;
    sources[1].fd = open(tar, O_RDONLY);
    CHECK(sources[1].fd >= 0);
    OK(bw_make(image, &make, sources, 2, &made, &err));
    CHECK(made.files >= 2 && made.bytes % made.block_bytes == 0 && told > 1);
    make.flags |= BW_MAKE_NEW;
    EXPECT(BW_EXISTS, bw_make(image, &make, NULL, 0, NULL, &err));
    /* The descriptor is the caller's, and was read to its end. */
    CHECK(read(sources[1].fd, text, 1) == 0);
    close(sources[1].fd);
    OK(bw_volume_open(image, NULL, &v, &err));
    OK(bw_file_open(v, "/from-tree", BW_READ, 0, &f, &err));
    OK(bw_file_read(f, 0, text, sizeof text, &n, &err));
    CHECK(n == 4 && memcmp(text, "tree", 4) == 0);
    OK(bw_file_close(f, &err));
    OK(bw_stat_path(v, "/from-tree", &st, &err));
    CHECK(st.uid == 5 && st.gid == 6 && st.mtime.seconds <= 1700000000);
    OK(bw_stat_path(v, "/from-tar", &st, &err));
    CHECK(st.size == 3);
    files(v);
    names(v);
    attributes(v);
    OK(bw_volume_sync(v, &err));
    OK(bw_volume_stat(v, &info, &err));
    CHECK(info.format == (format == BW_MAKE_F2FS ? BW_FORMAT_F2FS : BW_FORMAT_EXT4) && !info.read_only);
    CHECK(info.blocks_free <= info.blocks && info.inodes_free < info.inodes && info.name_bytes_max == 255);
    EXPECT(BW_BUSY, bw_check(image, NULL, &report, &err));
    OK(bw_volume_trim(v, NULL, &err));
    OK(bw_volume_close(v, &err));
    OK(bw_resize(image, made.bytes + (64 << 20), BW_RESIZE_DRY_RUN, NULL, &resized, &err));
    OK(bw_resize(image, made.bytes + (64 << 20), 0, NULL, &resized, &err));
    CHECK(resized.bytes_before == made.bytes && resized.bytes > made.bytes);
    OK(bw_resize(image, 0, BW_RESIZE_FILL, NULL, NULL, &err));
    OK(bw_resize(image, 4 << 20, BW_RESIZE_MINIMUM, NULL, &resized, &err));
    CHECK(resized.bytes < resized.bytes_before);
    OK(bw_check(image, NULL, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.clean && summary.exit_code == 0 && !summary.uncorrected && summary.files >= 4);
    OK(bw_report_close(report, &err));
    OK(bw_volume_open(image, &open_options, &v, &err));
    OK(bw_volume_stat(v, &info, &err));
    CHECK(info.read_only);
    EXPECT(BW_READ_ONLY, bw_mkdir(v, "/x", 0755, &err));
    CHECK(err.os_errno == EROFS);
    OK(bw_volume_close(v, &err));
    /* Damage is data, and is repaired. */
    int fd = open(image, O_RDWR);
    memset(text, 0x55, sizeof text);
    if (format == BW_MAKE_F2FS) {
        for (int i = 0; i < 64; i++)
            CHECK(pwrite(fd, text, sizeof text, 4096 + i * 64) == sizeof text);
    } else {
        CHECK(pwrite(fd, text, 4, 1024 + 12) == 4);
    }
    close(fd);
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(!summary.clean && summary.issues > 0 && !summary.changed);
    for (size_t i = 0; i < summary.issues; i++) {
        bw_issue issue;
        char *whole_text;
        OK(bw_report_issue(report, i, &issue, &err));
        CHECK(issue.kind[0] != 0 && issue.text[0] != 0 && issue.severity <= BW_SEVERITY_FATAL);
        OK(bw_report_issue_text(report, i, NULL, 0, &n, &err));
        whole_text = malloc(n);
        OK(bw_report_issue_text(report, i, whole_text, n, &n, &err));
        CHECK(strlen(whole_text) + 1 == n);
        free(whole_text);
    }
    OK(bw_report_close(report, &err));
    check.mode = BW_CHECK_REPAIR;
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.changed && !summary.uncorrected);
    OK(bw_report_close(report, &err));
}

static int stop(void *user, uint32_t phase, uint64_t done_, uint64_t total) {
    (void)phase;
    (void)done_;
    (void)total;
    __atomic_fetch_add((int *)user, 1, __ATOMIC_RELAXED);
    return 1;
}

static int stop_at_the_end(void *user, uint32_t step, uint64_t done_, uint64_t total) {
    (void)user;
    return step == BW_STEP_COPYING && done_ == total;
}

/* A build that is stopped leaves no image, and a repair that is stopped has written nothing. */
static void stopped(const char *image, uint32_t format, const char *tree) {
    int calls = 0;
    bw_make_options make = {.struct_size = sizeof make, .format = format, .bytes = 64 << 20, .progress = stop, .user = &calls};
    bw_check_options check = {.struct_size = sizeof check, .mode = BW_CHECK_REPAIR, .progress = stop, .user = &calls};
    bw_source source = {.kind = BW_SOURCE_PATH, .path = tree};
    bw_report report;
    bw_check_summary summary;
    /* Of f2fs the second superblock, of ext4 the number of free blocks. */
    off_t at = format == BW_MAKE_F2FS ? 4096 + 1024 : 1024 + 12;
    uint32_t damage = 0x55555555, found = 0;
    int fd;
    EXPECT(BW_INTERRUPTED, bw_make(image, &make, &source, 1, NULL, &err));
    CHECK(calls == 1 && access(image, F_OK) != 0);
    make.progress = stop_at_the_end;
    EXPECT(BW_INTERRUPTED, bw_make(image, &make, &source, 1, NULL, &err));
    CHECK(access(image, F_OK) != 0);
    make.progress = NULL;
    OK(bw_make(image, &make, &source, 1, NULL, &err));
    fd = open(image, O_RDWR);
    CHECK(pwrite(fd, &damage, sizeof damage, at) == sizeof damage);
    calls = 0;
    EXPECT(BW_INTERRUPTED, bw_check(image, &check, &report, &err));
    CHECK(calls > 0 && report.id == 0 && err.os_errno == EINTR);
    CHECK(pread(fd, &found, sizeof found, at) == sizeof found && found == damage);
    check.progress = NULL;
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.changed && !summary.uncorrected);
    OK(bw_report_close(report, &err));
    CHECK(pread(fd, &found, sizeof found, at) == sizeof found && found != damage);
    close(fd);
}

/* A sum over all bytes of a file. */
static uint64_t sum_of(const char *path) {
    static uint64_t words[8192];
    uint64_t sum = 0xcbf29ce484222325;
    FILE *f = fopen(path, "rb");
    size_t n;
    CHECK(f != NULL);
    while ((n = fread(words, 1, sizeof words, f)) != 0) {
        memset((char *)words + n, 0, sizeof words - n);
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
            sum = (sum ^ words[i] ^ n) * 0x100000001b3;
    }
    fclose(f);
    return sum;
}

/* Seals that are refused, with both images as they were. `image` has a volume of so many bytes, and a tree behind it. */
static void sealed_unharmed(const char *image, const char *other, uint64_t bytes) {
    bw_verity_options verity = {.struct_size = sizeof verity};
    bw_verity_tree tree;
    bw_volume v;
    uint64_t before = sum_of(image), before_other = sum_of(other);
    EXPECT(BW_INVALID, bw_verity_seal(image, 4 * bytes, NULL, &tree, &err));
    EXPECT(BW_INVALID, bw_verity_seal(image, 8192, NULL, &tree, &err));
    verity.tree = image;
    EXPECT(BW_INVALID, bw_verity_seal(image, bytes, &verity, &tree, &err));
    verity.tree = other;
    EXPECT(BW_INVALID, bw_verity_seal(image, bytes, &verity, &tree, &err));
    CHECK(sum_of(image) == before && sum_of(other) == before_other);
    OK(bw_volume_open(other, NULL, &v, &err));
    EXPECT(BW_BUSY, bw_verity_seal(other, bytes, NULL, &tree, &err));
    EXPECT(BW_BUSY, bw_verity_seal(image, bytes, &verity, &tree, &err));
    OK(bw_mkdir(v, "/still-there", 0755, &err));
    OK(bw_volume_close(v, &err));
    OK(bw_volume_open(other, NULL, &v, &err));
    OK(bw_rmdir(v, "/still-there", &err));
    OK(bw_volume_close(v, &err));
    CHECK(sum_of(image) == before);
}

/* What mkfs's rules, container images, listings, an earlier build and dm-verity are in C. */
static void sources_and_rules(const char *dir, const char *tree) {
    const char *image = in_dir(dir, "c-rules.img"), *next = in_dir(dir, "c-next.img"), *listing = in_dir(dir, "c-listing");
    bw_rule rules[] = {{.kind = BW_RULE_EXCLUDE, .text = "from-tree"},
                       {.kind = BW_RULE_OWNERS, .text = "0-65534:100000"},
                       {.kind = BW_RULE_MTIME, .number = 1234567},
                       {.kind = BW_RULE_MOUNT_POINT, .text = "/system"}};
    bw_make_options make = {.struct_size = sizeof make, .bytes = 16 << 20, .rules = rules, .rule_count = 4};
    bw_source sources[2] = {{.kind = BW_SOURCE_PATH, .path = tree}, {.kind = BW_SOURCE_DUMPFILE, .path = listing}};
    bw_verity_options verity = {.struct_size = sizeof verity, .salt = "salt", .salt_bytes = 4};
    bw_verity_tree hashes, again;
    bw_made made;
    bw_volume v;
    bw_stat st, st_next;
    FILE *f = fopen(listing, "w");
    CHECK(f != NULL);
    fputs("/ 0 40755 2 0 0 0 0.0 - - -\n/listed 5 100644 1 7 8 0 5.0 - hello -\n", f);
    fclose(f);
    OK(bw_make(image, &make, sources, 2, &made, &err));
    OK(bw_volume_open(image, NULL, &v, &err));
    EXPECT(BW_NOT_FOUND, bw_stat_path(v, "/from-tree", &st, &err));
    OK(bw_stat_path(v, "/listed", &st, &err));
    CHECK(st.uid == 100007 && st.gid == 100008 && st.mtime.seconds == 1234567 && st.size == 5);
    OK(bw_volume_close(v, &err));
    /* The listing from a descriptor, over the earlier build: the same file keeps its number. */
    sources[1] = (bw_source){.kind = BW_SOURCE_DUMPFILE_FD, .fd = open(listing, O_RDONLY)};
    make.rule_count = 1;
    make.base = image;
    OK(bw_make(next, &make, sources, 2, NULL, &err));
    close(sources[1].fd);
    OK(bw_volume_open(next, NULL, &v, &err));
    OK(bw_stat_path(v, "/listed", &st_next, &err));
    CHECK(st_next.ino == st.ino && st_next.uid == 7);
    OK(bw_volume_close(v, &err));
    OK(bw_verity_seal(next, made.bytes, &verity, &hashes, &err));
    CHECK(hashes.data_blocks * hashes.block_bytes == made.bytes && hashes.hash_offset == made.bytes && hashes.salt_bytes == 4);
    verity.tree = in_dir(dir, "c-hashes");
    OK(bw_verity_seal(next, made.bytes, &verity, &again, &err));
    CHECK(again.hash_offset == 0 && memcmp(again.root_hash, hashes.root_hash, sizeof hashes.root_hash) == 0);
    EXPECT(BW_INVALID, bw_verity_seal(next, 100, NULL, &hashes, &err));
    sealed_unharmed(next, image, made.bytes);
    EXPECT(BW_NULL, bw_verity_seal(next, made.bytes, NULL, NULL, &err));
    /* What cannot be is said. */
    make.base = NULL;
    rules[0] = (bw_rule){.kind = 99};
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    rules[0] = (bw_rule){.kind = BW_RULE_EXCLUDE, .text = "x", .reserved = 1};
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    CHECK(strstr(err.message, "reserved"));
    rules[0] = (bw_rule){.kind = BW_RULE_EXCLUDE};
    EXPECT(BW_NULL, bw_make(image, &make, sources, 1, NULL, &err));
    rules[0].text = "[";
    EXPECT(BW_INVALID, bw_make(image, &make, sources, 1, NULL, &err));
    rules[0] = (bw_rule){.kind = BW_RULE_FILE_CONTEXTS, .text = in_dir(dir, "none")};
    EXPECT(BW_NOT_FOUND, bw_make(image, &make, sources, 1, NULL, &err));
    make.rule_count = 0;
    sources[0].reserved[1] = 1;
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    CHECK(strstr(err.message, "source.reserved"));
    sources[0] = (bw_source){.kind = BW_SOURCE_PATH, .path = tree, .objects = tree};
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    CHECK(strstr(err.message, "source.objects"));
    sources[0] = (bw_source){.kind = BW_SOURCE_PATH, .path = tree, .fd = 1};
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    CHECK(strstr(err.message, "source.fd"));
    /* -1 is no descriptor. */
    sources[0].fd = -1;
    OK(bw_make(image, &make, sources, 1, NULL, &err));
    make.platform = "nonsense";
    EXPECT(BW_INVALID, bw_make(image, &make, sources, 1, NULL, &err));
    make.platform = "linux/arm64";
    sources[0] = (bw_source){.kind = BW_SOURCE_IMAGE, .path = tree};
    EXPECT(BW_MISUSE, bw_make(image, &make, sources, 1, NULL, &err));
    sources[0].path = "docker-archive:/none.tar";
    EXPECT(BW_NOT_FOUND, bw_make(image, &make, sources, 1, NULL, &err));
    CHECK(strstr(err.message, "none.tar"));
    /* A listing is no container image. */
    sources[0] = (bw_source){.kind = BW_SOURCE_IMAGE_FD, .fd = open(listing, O_RDONLY)};
    CHECK(bw_make(image, &make, sources, 1, NULL, &err) != BW_OK);
    close(sources[0].fd);
}

static int stop_now;
static int phases;

static int watch(void *user, uint32_t phase, uint64_t done_, uint64_t total) {
    (void)done_;
    (void)total;
    CHECK(user == &phases && phase <= BW_PHASE_PLAN);
    phases++;
    return stop_now;
}

/* A journal on another device: every call that needs it takes it, and fails without it. */
static void journal_elsewhere(const char *image, const char *log) {
    bw_make_options make = {.struct_size = sizeof make, .format = BW_MAKE_JOURNAL, .bytes = 8 << 20, .label = "log"};
    bw_open_options open_options = {.struct_size = sizeof open_options, .place.journal = log};
    bw_check_options check = {.struct_size = sizeof check, .place.journal = log};
    bw_change_options change = {.struct_size = sizeof change, .place.journal = log, .progress = watch, .user = &phases};
    bw_settings to = {.struct_size = sizeof to};
    bw_made made;
    bw_volume v;
    bw_report report;
    bw_check_summary summary;
    bw_resized resized;
    make.progress = watch;
    make.user = &phases;
    stop_now = 1;
    EXPECT(BW_INTERRUPTED, bw_make(log, &make, NULL, 0, NULL, &err));
    CHECK(access(log, F_OK) != 0);
    stop_now = 0;
    OK(bw_make(log, &make, NULL, 0, &made, &err));
    CHECK(made.bytes == 8 << 20 && made.block_bytes * made.blocks == made.bytes && made.inodes == 0);
    make.inodes = 5;
    EXPECT(BW_MISUSE, bw_make(log, &make, NULL, 0, NULL, &err));
    make = (bw_make_options){.struct_size = sizeof make, .bytes = 64 << 20, .journal = log, .inodes = 2048, .inode_bytes = 512};
    make.flags = BW_MAKE_RESERVED | BW_MAKE_HASH_SEED;
    OK(bw_make(image, &make, NULL, 0, &made, &err));
    CHECK(made.inodes == 2048);
    CHECK(bw_volume_open(image, NULL, &v, &err) != BW_OK && strstr(err.message, "journal"));
    OK(bw_volume_open(image, &open_options, &v, &err));
    OK(bw_mkdir(v, "/made", 0755, &err));
    OK(bw_volume_close(v, &err));
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.clean && summary.directories == 3 && summary.blocks_written == 0);
    OK(bw_report_close(report, &err));
    CHECK(bw_resize(image, 128 << 20, 0, NULL, &resized, &err) != BW_OK && strstr(err.message, "journal"));
    stop_now = 1;
    EXPECT(BW_INTERRUPTED, bw_resize(image, 256 << 20, 0, &change, &resized, &err));
    stop_now = 0;
    OK(bw_resize(image, 256 << 20, 0, &change, &resized, &err));
    CHECK(resized.bytes > 200 << 20 && phases > 1);
    to.features = "^has_journal";
    OK(bw_set(image, &to, &change, &err));
    OK(bw_volume_open(image, NULL, &v, &err));
    OK(bw_rmdir(v, "/made", &err));
    OK(bw_volume_close(v, &err));
}

static void settings(const char *image) {
    bw_make_options make = {.struct_size = sizeof make, .bytes = 64 << 20};
    bw_settings to = {.struct_size = sizeof to};
    bw_check_options check = {.struct_size = sizeof check, .mode = BW_CHECK_REPAIR, .flags = BW_CHECK_DISCARD_FSYNCED};
    bw_report report;
    bw_volume v;
    OK(bw_make(image, &make, NULL, 0, NULL, &err));
    EXPECT(BW_NULL, bw_set(image, NULL, NULL, &err));
    OK(bw_set(image, &to, NULL, &err));
    to.label = "renamed";
    to.default_options = "acl";
    to.errors = BW_ERRORS_REMOUNT_READ_ONLY;
    to.flags = BW_SET_RANDOM_UUID | BW_SET_RESERVED_PERCENT;
    to.reserved_percent = 1.5;
    to.journal_bytes = 8 << 20;
    OK(bw_set(image, &to, NULL, &err));
    to.flags |= BW_SET_UUID;
    EXPECT(BW_MISUSE, bw_set(image, &to, NULL, &err));
    to.flags = 1 << 20;
    EXPECT(BW_MISUSE, bw_set(image, &to, NULL, &err));
    to.flags = 0;
    to.errors = 9;
    EXPECT(BW_MISUSE, bw_set(image, &to, NULL, &err));
    to.errors = 0;
    to.features = "nonsense";
    EXPECT(BW_INVALID, bw_set(image, &to, NULL, &err));
    OK(bw_volume_open(image, NULL, &v, &err));
    to.features = NULL;
    EXPECT(BW_BUSY, bw_set(image, &to, NULL, &err));
    OK(bw_volume_close(v, &err));
    /* Options of the other format. */
    EXPECT(BW_INVALID, bw_check(image, &check, &report, &err));
    CHECK(strstr(err.message, "f2fs"));
    make.format = BW_MAKE_F2FS;
    OK(bw_make(image, &make, NULL, 0, NULL, &err));
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_close(report, &err));
    check.flags = 0;
    check.superblock = 32768;
    EXPECT(BW_INVALID, bw_check(image, &check, &report, &err));
    check.superblock = 0;
    check.flags = 1 << 20;
    EXPECT(BW_MISUSE, bw_check(image, &check, &report, &err));
}

/* The image is only read, and the file beside it takes the changes. */
static void forked(const char *image, const char *changes) {
    bw_make_options make = {.struct_size = sizeof make, .bytes = 16 << 20};
    bw_open_options over = {.struct_size = sizeof over, .place.overlay = changes};
    const char *none[1] = {NULL};
    bw_volume v;
    bw_stat st;
    OK(bw_make(image, &make, NULL, 0, NULL, &err));
    OK(bw_volume_open(image, &over, &v, &err));
    OK(bw_mkdir(v, "/forked", 0755, &err));
    OK(bw_volume_close(v, &err));
    OK(bw_volume_open(image, NULL, &v, &err));
    EXPECT(BW_NOT_FOUND, bw_stat_path(v, "/forked", &st, &err));
    OK(bw_volume_close(v, &err));
    OK(bw_volume_open(image, &over, &v, &err));
    OK(bw_stat_path(v, "/forked", &st, &err));
    OK(bw_volume_close(v, &err));
    over.place.overlay = NULL;
    over.place.device_count = 1;
    EXPECT(BW_NULL, bw_volume_open(image, &over, &v, &err));
    over.place.devices = none;
    EXPECT(BW_NULL, bw_volume_open(image, &over, &v, &err));
    none[0] = image;
    EXPECT(BW_INVALID, bw_volume_open(image, &over, &v, &err));
}

/* A disk with a FAT volume and an ext4 volume: its partitions, and the second one as a volume that grows. */
static void partitions(const char *disk, const char *picture) {
    bw_change_options change = {.struct_size = sizeof change, .progress = watch, .user = &phases};
    bw_map_options map = {.struct_size = sizeof map};
    bw_partitions parts;
    bw_partition part;
    bw_table table;
    bw_resized resized;
    bw_volume v;
    char path[4200], drawn[16];
    int fd;
    snprintf(path, sizeof path, "%s:p2", disk);
    OK(bw_partitions_read(disk, 0, &parts, &err));
    OK(bw_partitions_table(parts, &table, &err));
    CHECK(table.scheme == BW_TABLE_GPT && table.count == 2 && table.disk_bytes == 256 << 20 && strlen(table.id) == 36);
    OK(bw_partitions_get(parts, 0, &part, &err));
    CHECK(part.number == 1 && strcmp(part.format, "fat32") == 0 && strcmp(part.name, "esp") == 0 && part.start == 1 << 20);
    OK(bw_partitions_get(parts, 1, &part, &err));
    CHECK(part.number == 2 && strcmp(part.format, "ext4") == 0 && strcmp(part.label, "data") == 0 && part.bytes == 32 << 20);
    CHECK(strlen(part.uuid) == 36 && strlen(part.kind) == 36 && part.kind_name[0] && !part.problem[0]);
    EXPECT(BW_MISUSE, bw_partitions_get(parts, 2, &part, &err));
    OK(bw_partitions_close(parts, &err));
    EXPECT(BW_BAD_HANDLE, bw_partitions_close(parts, &err));
    EXPECT(BW_BAD_HANDLE, bw_partitions_table(parts, &table, &err));
    EXPECT(BW_INVALID, bw_partitions_read(path, 0, &parts, &err));
    EXPECT(BW_NULL, bw_partitions_read(disk, 0, NULL, &err));
    OK(bw_volume_open(path, NULL, &v, &err));
    OK(bw_mkdir(v, "/made", 0755, &err));
    EXPECT(BW_BUSY, bw_resize(path, 0, BW_RESIZE_FILL | BW_RESIZE_GROW_PARTITION, NULL, NULL, &err));
    OK(bw_volume_close(v, &err));
    /* Without the partition, the volume has all of its room already. */
    EXPECT(BW_INVALID, bw_resize(path, 64 << 20, 0, NULL, NULL, &err));
    EXPECT(BW_INVALID, bw_resize(disk, 0, BW_RESIZE_FILL | BW_RESIZE_GROW_PARTITION, NULL, NULL, &err));
    EXPECT(BW_INVALID, bw_resize(path, 0, BW_RESIZE_MINIMUM | BW_RESIZE_GROW_PARTITION, NULL, NULL, &err));
    EXPECT(BW_NO_SPACE, bw_resize(path, 1 << 30, BW_RESIZE_GROW_PARTITION, NULL, NULL, &err));
    stop_now = 1;
    EXPECT(BW_INTERRUPTED, bw_resize(path, 64 << 20, BW_RESIZE_GROW_PARTITION, &change, NULL, &err));
    stop_now = 0;
    OK(bw_resize(path, 64 << 20, BW_RESIZE_GROW_PARTITION, &change, &resized, &err));
    CHECK(resized.bytes_before == 32 << 20 && resized.bytes == 64 << 20);
    OK(bw_resize(path, 0, BW_RESIZE_FILL | BW_RESIZE_GROW_PARTITION, NULL, &resized, &err));
    CHECK(resized.bytes_before == 64 << 20 && resized.bytes > 128 << 20);
    OK(bw_volume_open(path, NULL, &v, &err));
    OK(bw_rmdir(v, "/made", &err));
    OK(bw_volume_close(v, &err));
    /* Its map. */
    fd = open(picture, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    OK(bw_map(path, NULL, fd, &err));
    CHECK(pread(fd, drawn, 4, 0) == 4 && memcmp(drawn, "<svg", 4) == 0);
    map.form = BW_MAP_HTML;
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    OK(bw_map(path, &map, fd, &err));
    CHECK(pread(fd, drawn, 9, 0) == 9 && memcmp(drawn, "<!DOCTYPE", 9) == 0);
    map.form = 9;
    EXPECT(BW_MISUSE, bw_map(path, &map, fd, &err));
    EXPECT(BW_MISUSE, bw_map(path, NULL, -1, &err));
    CHECK(close(fd) == 0);
    CHECK(bw_map(disk, NULL, 1, &err) != BW_OK);
}

/* The data of the disk is in a file outside of the image's folder, which only the image names. */
static void elsewhere(const char *image) {
    bw_make_options make = {.struct_size = sizeof make, .flags = BW_MAKE_ALLOW_BACKING};
    bw_open_options any = {.struct_size = sizeof any, .place.flags = BW_ALLOW_BACKING};
    bw_open_options wrong = {.struct_size = sizeof wrong, .place.flags = 2};
    bw_check_options check = {.struct_size = sizeof check, .place.flags = BW_ALLOW_BACKING};
    bw_change_options change = {.struct_size = sizeof change, .place.flags = BW_ALLOW_BACKING};
    bw_settings set = {.struct_size = sizeof set, .label = "elsewhere"};
    bw_map_options map = {.struct_size = sizeof map, .place.flags = BW_ALLOW_BACKING};
    bw_partitions parts;
    bw_report report;
    bw_volume v;
    int fd = open("/dev/null", O_WRONLY);
    EXPECT(BW_IO, bw_make(image, NULL, NULL, 0, NULL, &err));
    CHECK(strstr(err.message, "allow_backing"));
    OK(bw_make(image, &make, NULL, 0, NULL, &err));
    EXPECT(BW_IO, bw_volume_open(image, NULL, &v, &err));
    EXPECT(BW_MISUSE, bw_volume_open(image, &wrong, &v, &err));
    wrong.place.flags = 0;
    wrong.place.reserved = 1;
    EXPECT(BW_MISUSE, bw_volume_open(image, &wrong, &v, &err));
    OK(bw_volume_open(image, &any, &v, &err));
    OK(bw_mkdir(v, "/made", 0755, &err));
    OK(bw_volume_close(v, &err));
    EXPECT(BW_IO, bw_check(image, NULL, &report, &err));
    OK(bw_check(image, &check, &report, &err));
    OK(bw_report_close(report, &err));
    EXPECT(BW_IO, bw_set(image, &set, NULL, &err));
    OK(bw_set(image, &set, &change, &err));
    EXPECT(BW_IO, bw_resize(image, 0, BW_RESIZE_MINIMUM, NULL, NULL, &err));
    OK(bw_resize(image, 0, BW_RESIZE_MINIMUM, &change, NULL, &err));
    EXPECT(BW_IO, bw_map(image, NULL, fd, &err));
    OK(bw_map(image, &map, fd, &err));
    EXPECT(BW_IO, bw_partitions_read(image, 0, &parts, &err));
    EXPECT(BW_MISUSE, bw_partitions_read(image, 2, &parts, &err));
    OK(bw_partitions_read(image, BW_ALLOW_BACKING, &parts, &err));
    OK(bw_partitions_close(parts, &err));
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4 && bw_abi() == BW_ABI && strchr(bw_version(), '.'));
    CHECK(strcmp(bw_status_name(BW_NOT_FOUND), "BW_NOT_FOUND") == 0 && strcmp(bw_status_name(-1), "BW_?") == 0);
    whole(in_dir(argv[1], "c-ext4.img"), BW_MAKE_EXT4, argv[2], argv[3]);
    whole(in_dir(argv[1], "c-f2fs.img"), BW_MAKE_F2FS, argv[2], argv[3]);
    removed_meanwhile(in_dir(argv[1], "c-removed.img"), BW_MAKE_EXT4);
    removed_meanwhile(in_dir(argv[1], "c-removed-f2fs.img"), BW_MAKE_F2FS);
    stopped(in_dir(argv[1], "c-stopped.img"), BW_MAKE_EXT4, argv[2]);
    stopped(in_dir(argv[1], "c-stopped-f2fs.img"), BW_MAKE_F2FS, argv[2]);
    sources_and_rules(argv[1], argv[2]);
    journal_elsewhere(in_dir(argv[1], "c-journal.img"), in_dir(argv[1], "c-log.img"));
    settings(in_dir(argv[1], "c-settings.img"));
    partitions(in_dir(argv[1], "c-disk.img"), in_dir(argv[1], "c-map.svg"));
    forked(in_dir(argv[1], "c-base.img"), in_dir(argv[1], "c-changes"));
    if (access(in_dir(argv[1], "elsewhere/c.qcow2"), F_OK) == 0)
        elsewhere(in_dir(argv[1], "elsewhere/c.qcow2"));
    return done("api");
}
