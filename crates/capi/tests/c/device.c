/* A device that the program implements: in memory, failing on demand, calling back. */
#include "common.h"
#include <pthread.h>

static bw_error err;

struct disk {
    unsigned char *bytes;
    size_t size;
    int released;
    int fail_reads, fail_writes, fail_flushes;
    int inside, overlapped;
    int calls_back;
    bw_status called_back;
    bw_volume volume;
    pthread_mutex_t lock;
};

static int enter(struct disk *d) {
    if (__atomic_add_fetch(&d->inside, 1, __ATOMIC_SEQ_CST) > 1)
        d->overlapped = 1;
    if (d->calls_back) {
        bw_error own;
        d->called_back = bw_volume_sync(d->volume, &own);
    }
    return 0;
}

static int leave(struct disk *d, int result) {
    __atomic_sub_fetch(&d->inside, 1, __ATOMIC_SEQ_CST);
    return result;
}

static int disk_read(void *user, uint64_t offset, void *buffer, size_t bytes) {
    struct disk *d = user;
    enter(d);
    CHECK(offset + bytes <= d->size && offset % 512 == 0 && bytes % 512 == 0);
    if (d->fail_reads)
        return leave(d, EIO);
    memcpy(buffer, d->bytes + offset, bytes);
    return leave(d, 0);
}

static int disk_write(void *user, uint64_t offset, const void *buffer, size_t bytes) {
    struct disk *d = user;
    enter(d);
    CHECK(offset + bytes <= d->size && offset % 512 == 0 && bytes % 512 == 0);
    if (d->fail_writes)
        return leave(d, d->fail_writes);
    memcpy(d->bytes + offset, buffer, bytes);
    return leave(d, 0);
}

static int disk_flush(void *user) {
    struct disk *d = user;
    enter(d);
    return leave(d, d->fail_flushes ? EIO : 0);
}

static int disk_discard(void *user, uint64_t offset, uint64_t bytes) {
    struct disk *d = user;
    enter(d);
    CHECK(offset + bytes <= d->size);
    memset(d->bytes + offset, 0, bytes);
    return leave(d, 0);
}

static void disk_release(void *user) {
    ((struct disk *)user)->released++;
}

static void round_trip(uint32_t format, size_t size) {
    struct disk d = {.bytes = calloc(1, size), .size = size};
    bw_device device = {.struct_size = sizeof device, .flags = BW_DEVICE_SERIAL, .bytes = size, .user = &d, .read = disk_read, .write = disk_write,
                        .flush = disk_flush, .discard = disk_discard, .release = disk_release};
    bw_make_options make = {.struct_size = sizeof make, .format = format};
    bw_volume v;
    bw_file f;
    bw_report report;
    bw_check_summary summary;
    char buffer[16];
    size_t n;
    char *data = malloc(1 << 20);
    memset(data, 7, 1 << 20);

    OK(bw_make_on_device(&device, &make, NULL, 0, NULL, &err));
    CHECK(d.released == 1);
    OK(bw_volume_open_device(&device, NULL, &v, &err));
    OK(bw_file_open(v, "/f", BW_READ | BW_WRITE | BW_CREATE, 0600, &f, &err));
    OK(bw_file_write(f, 0, data, 1 << 20, NULL, &err));
    OK(bw_file_sync(f, &err));
    OK(bw_file_close(f, &err));
    OK(bw_volume_trim(v, NULL, &err));
    OK(bw_volume_close(v, &err));
    CHECK(d.released == 2 && !d.overlapped);
    OK(bw_check_device(&device, NULL, &report, &err));
    OK(bw_report_summary(report, &summary, &err));
    CHECK(summary.clean);
    OK(bw_report_close(report, &err));
    CHECK(d.released == 3);

    /* Reads that fail are errors with the device's errno, and nothing is left open. */
    d.fail_reads = 1;
    EXPECT(BW_IO, bw_volume_open_device(&device, NULL, &v, &err));
    CHECK(v.id == 0 && err.os_errno == EIO && d.released == 4);
    EXPECT(BW_IO, bw_check_device(&device, NULL, &report, &err));
    d.fail_reads = 0;

    /* A call from inside a callback is refused, whatever it asks for. */
    OK(bw_volume_open_device(&device, NULL, &v, &err));
    d.volume = v;
    d.calls_back = 1;
    OK(bw_file_open(v, "/f", BW_READ | BW_WRITE, 0, &f, &err));
    OK(bw_file_write(f, 0, "new", 3, NULL, &err));
    OK(bw_volume_sync(v, &err));
    CHECK(d.called_back == BW_REENTRANT);
    d.calls_back = 0;

    /* A write that fails reaches the caller's fsync, and the volume is not used for writing after its metadata could not be written. */
    OK(bw_file_write(f, 0, data, 1 << 16, NULL, &err));
    d.fail_writes = ENOSPC;
    CHECK(bw_file_sync(f, &err) != BW_OK);
    CHECK(err.message[0] != 0 && err.os_errno != 0);
    d.fail_writes = EIO;
    bw_mkdir(v, "/d", 0700, &err);
    CHECK(bw_volume_sync(v, &err) != BW_OK);
    CHECK(bw_volume_close(v, &err) != BW_OK);
    EXPECT(BW_BAD_HANDLE, bw_volume_close(v, &err));
    OK(bw_file_close(f, &err));
    d.fail_writes = 0;

    /* What was durable before is still there. */
    OK(bw_volume_open_device(&device, NULL, &v, &err));
    OK(bw_file_open(v, "/f", BW_READ, 0, &f, &err));
    OK(bw_file_read(f, 1 << 19, buffer, sizeof buffer, &n, &err));
    CHECK(n == sizeof buffer && buffer[0] == 7);
    OK(bw_file_close(f, &err));
    d.fail_flushes = 1;
    OK(bw_mkdir(v, "/e", 0700, &err));
    CHECK(bw_volume_sync(v, &err) != BW_OK);
    d.fail_flushes = 0;
    bw_volume_close(v, &err);

    /* Devices that cannot be. */
    int released = d.released;
    device.logical_block_bytes = 1000;
    EXPECT(BW_MISUSE, bw_volume_open_device(&device, NULL, &v, &err));
    device.logical_block_bytes = 0;
    device.flush = NULL;
    EXPECT(BW_MISUSE, bw_volume_open_device(&device, NULL, &v, &err));
    device.read = NULL;
    EXPECT(BW_NULL, bw_volume_open_device(&device, NULL, &v, &err));
    EXPECT(BW_NULL, bw_volume_open_device(NULL, NULL, &v, &err));
    device.struct_size--;
    EXPECT(BW_MISUSE, bw_volume_open_device(&device, NULL, &v, &err));
    CHECK(d.released == released);

    /* A device that is only read. */
    device = (bw_device){.struct_size = sizeof device, .flags = BW_DEVICE_READ_ONLY, .bytes = size, .user = &d, .read = disk_read};
    OK(bw_volume_open_device(&device, NULL, &v, &err));
    EXPECT(BW_READ_ONLY, bw_mkdir(v, "/x", 0700, &err));
    OK(bw_volume_close(v, &err));
    free(data);
    free(d.bytes);
}

int main(void) {
    round_trip(BW_MAKE_EXT4, 16 << 20);
    round_trip(BW_MAKE_F2FS, 64 << 20);
    return done("device");
}
