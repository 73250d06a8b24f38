/* blockwright: ext4 and f2fs file systems in images and on block devices. Generated from crates/capi; docs/C-API.md is the manual. */


#ifndef BLOCKWRIGHT_H
#define BLOCKWRIGHT_H

#include <stddef.h>
#include <stdint.h>

/**
 * The number of the ABI that this header describes. It changes when a function or a structure changes; see `bw_abi`.
 */
#define BW_ABI 0

/**
 * Do not follow a symbolic link at the path's end.
 */
#define BW_NO_FOLLOW 64

/**
 * Regular file.
 */
#define BW_TYPE_REGULAR 1

/**
 * Directory.
 */
#define BW_TYPE_DIRECTORY 2

/**
 * Symbolic link.
 */
#define BW_TYPE_SYMLINK 3

/**
 * Character device.
 */
#define BW_TYPE_CHAR_DEVICE 4

/**
 * Block device.
 */
#define BW_TYPE_BLOCK_DEVICE 5

/**
 * Named pipe.
 */
#define BW_TYPE_FIFO 6

/**
 * Unix-domain socket.
 */
#define BW_TYPE_SOCKET 7

/**
 * Leaves the owner or the group as it is.
 */
#define BW_KEEP_ID UINT32_MAX

/**
 * The attribute must not exist.
 */
#define BW_XATTR_CREATE 1

/**
 * The attribute must exist.
 */
#define BW_XATTR_REPLACE 2

/**
 * Make ext4.
 */
#define BW_MAKE_EXT4 0

/**
 * Make ext3.
 */
#define BW_MAKE_EXT3 1

/**
 * Make ext2.
 */
#define BW_MAKE_EXT2 2

/**
 * Make f2fs.
 */
#define BW_MAKE_F2FS 3

/**
 * Make a journal for an ext4 volume on another device, and no volume. `bytes`, `block_bytes`, `epoch`, `label`, `uuid` and `progress` count.
 */
#define BW_MAKE_JOURNAL 4

/**
 * As small as the sources allow; `bytes` is how much stays free.
 */
#define BW_MAKE_AUTO 1

/**
 * `epoch` counts: the same sources and options make the same bytes.
 */
#define BW_MAKE_EPOCH 2

/**
 * `uid` and `gid` own everything that comes from directories, and the root directory.
 */
#define BW_MAKE_OWNER 4

/**
 * `uuid` counts.
 */
#define BW_MAKE_UUID 8

/**
 * Fail when there is something at `path`.
 */
#define BW_MAKE_NEW 16

/**
 * `reserved_percent` counts.
 */
#define BW_MAKE_RESERVED 32

/**
 * `hash_seed` counts.
 */
#define BW_MAKE_HASH_SEED 64

/**
 * The configuration of the last container image is put into the volume, as `/.blockwright/config.json`.
 */
#define BW_MAKE_KEEP_CONFIG 128

/**
 * As `BW_ALLOW_BACKING`: for the image at `path`, for `journal` and for `base`.
 */
#define BW_MAKE_ALLOW_BACKING 256

/**
 * A directory of the host, or a tar file, plain or compressed with gzip, zstd or xz.
 */
#define BW_SOURCE_PATH 0

/**
 * A tar stream from an open descriptor, plain or compressed, read to its end.
 */
#define BW_SOURCE_TAR_FD 1

/**
 * A container image: `path` is `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]` or `docker-archive:FILE[:NAME]`.
 */
#define BW_SOURCE_IMAGE 2

/**
 * The stream of `docker save` from an open descriptor, also compressed. `path` is the image's name, where the stream has several, or null.
 */
#define BW_SOURCE_IMAGE_FD 3

/**
 * A listing of composefs. Data that is not in it is below `objects`; if that is null, below the listing's folder.
 */
#define BW_SOURCE_DUMPFILE 4

/**
 * The same from an open descriptor. If `objects` is null, all data is in the listing.
 */
#define BW_SOURCE_DUMPFILE_FD 5

/**
 * `text` is a pattern of names or paths that are left out, as of `mkfs --exclude`.
 */
#define BW_RULE_EXCLUDE 0

/**
 * `text` is a pattern of files that fs-verity protects.
 */
#define BW_RULE_FSVERITY 1

/**
 * `text` maps users and groups, as of `mkfs --owner-map`: `FROM:TO`, `FIRST-LAST:TO`, with `u:` or `g:` in front, several with commas between.
 */
#define BW_RULE_OWNERS 2

/**
 * All files have this time of the last change, in `number`: seconds since 1970.
 */
#define BW_RULE_MTIME 3

/**
 * Files that were changed later have this time.
 */
#define BW_RULE_MTIME_MAX 4

/**
 * `text` is the path of a file with SELinux labels, as `file_contexts`.
 */
#define BW_RULE_FILE_CONTEXTS 5

/**
 * `text` is the path of a file with Android's owners, modes and capabilities, as `fs_config`.
 */
#define BW_RULE_FS_CONFIG 6

/**
 * `text` is where the volume will be mounted: it stands before the paths that these two files are asked about.
 */
#define BW_RULE_MOUNT_POINT 7

/**
 * Sources are being read: `done` files are known.
 */
#define BW_STEP_READING 0

/**
 * Data is being copied: `done` of `total` bytes.
 */
#define BW_STEP_COPYING 1

/**
 * Metadata is being written.
 */
#define BW_STEP_FINISHING 2

/**
 * Change nothing.
 */
#define BW_CHECK_READ_ONLY 0

/**
 * Make the repairs that are safe without a human.
 */
#define BW_CHECK_PREEN 1

/**
 * Make all repairs.
 */
#define BW_CHECK_REPAIR 2

/**
 * f2fs, with `BW_CHECK_REPAIR`: give up what fsync wrote since the last checkpoint, where a mount refuses to recover it.
 */
#define BW_CHECK_DISCARD_FSYNCED 1

/**
 * Worth saying, but no damage.
 */
#define BW_SEVERITY_NOTE 0

/**
 * A count, flag or bitmap that disagrees with what it sums up.
 */
#define BW_SEVERITY_MINOR 1

/**
 * A structure is wrong; data or names may be affected.
 */
#define BW_SEVERITY_DAMAGE 2

/**
 * The rest of the volume could not be checked because of it.
 */
#define BW_SEVERITY_FATAL 3

/**
 * The issue is still there.
 */
#define BW_OUTCOME_LEFT 0

/**
 * It was repaired.
 */
#define BW_OUTCOME_REPAIRED 1

/**
 * It is still there, and no mode repairs it.
 */
#define BW_OUTCOME_UNREPAIRABLE 2

/**
 * Bytes of the name of an issue's kind, with its NUL.
 */
#define BW_ISSUE_KIND_BYTES 64

/**
 * Bytes of an issue's text, with its NUL. A longer one is shortened in its middle.
 */
#define BW_ISSUE_TEXT_BYTES 952

/**
 * No write is accepted.
 */
#define BW_DEVICE_READ_ONLY 1

/**
 * The library calls one function of the device at a time. Without it the functions are called from several threads at once.
 */
#define BW_DEVICE_SERIAL 2

/**
 * Bytes of a name, with its NUL.
 */
#define BW_NAME_BYTES 256

/**
 * Bytes of a message, with its NUL. A longer one is shortened in its middle.
 */
#define BW_MESSAGE_BYTES 1016

/**
 * For reading.
 */
#define BW_READ 1

/**
 * For writing.
 */
#define BW_WRITE 2

/**
 * For writing at the end, wherever that is at the time of each write.
 */
#define BW_APPEND 4

/**
 * Make the file when it is not there.
 */
#define BW_CREATE 8

/**
 * Make the file; fail when it is there.
 */
#define BW_CREATE_NEW 16

/**
 * Cut the file to nothing.
 */
#define BW_TRUNCATE 32

/**
 * Every write is durable when it returns.
 */
#define BW_SYNC 128

/**
 * Bypass the page cache where alignment allows.
 */
#define BW_DIRECT 256

/**
 * A picture: SVG.
 */
#define BW_MAP_SVG 0

/**
 * A page of its own, to zoom in: HTML.
 */
#define BW_MAP_HTML 1

/**
 * Replaces what the new name named.
 */
#define BW_RENAME_REPLACE 0

/**
 * Fails when the new name exists.
 */
#define BW_RENAME_NO_REPLACE 1

/**
 * Exchanges the two names.
 */
#define BW_RENAME_EXCHANGE 2

/**
 * Open for reading only; nothing is written to the device.
 */
#define BW_OPEN_READ_ONLY 1

/**
 * Do not lock the image against other processes.
 */
#define BW_OPEN_NO_LOCK 2

/**
 * The disk has no table of partitions.
 */
#define BW_TABLE_NONE 0

/**
 * It has a GPT.
 */
#define BW_TABLE_GPT 1

/**
 * It has an MBR.
 */
#define BW_TABLE_MBR 2

/**
 * Bytes of a partition's name, with its NUL.
 */
#define BW_PARTITION_NAME_BYTES 112

/**
 * Bytes of the label of what a partition holds, with its NUL. A longer one is shortened in its middle.
 */
#define BW_PARTITION_LABEL_BYTES 256

/**
 * Bytes of the texts that have a fixed form, with their NUL.
 */
#define BW_PARTITION_ID_BYTES 40

/**
 * Bytes of a sentence about a partition, with its NUL.
 */
#define BW_PARTITION_TEXT_BYTES 256

/**
 * Backing files and external data files of qcow2 images are opened wherever they are, and external data files for writing. Without it only regular files in the
 * image's folder are opened, and only for reading: the image names them, and the program does not.
 */
#define BW_ALLOW_BACKING 1

/**
 * As few bytes as the files need; `bytes` is how much stays free.
 */
#define BW_RESIZE_MINIMUM 1

/**
 * All of the image, partition or device; `bytes` is 0.
 */
#define BW_RESIZE_FILL 2

/**
 * Only find out what would be done.
 */
#define BW_RESIZE_DRY_RUN 4

/**
 * `path` is a partition, as `disk.img:p2`, which becomes larger first, into the free room behind it. With `BW_RESIZE_FILL` it takes all of that room.
 */
#define BW_RESIZE_GROW_PARTITION 8

/**
 * It looks at inodes, and may change each of them. `done` and `total` count block groups.
 */
#define BW_PHASE_INODES 0

/**
 * Inodes get other numbers. They count inodes.
 */
#define BW_PHASE_NUMBERS 1

/**
 * Files are copied from one place to another. They count bytes.
 */
#define BW_PHASE_DATA 2

/**
 * Metadata is written or moved. They count block groups, directories, or blocks of a table.
 */
#define BW_PHASE_METADATA 3

/**
 * The change is gone through in memory. They count what that step counts.
 */
#define BW_PHASE_PLAN 4

/**
 * `uuid` counts.
 */
#define BW_SET_UUID 1

/**
 * The volume gets a random UUID.
 */
#define BW_SET_RANDOM_UUID 2

/**
 * `hash_seed` counts.
 */
#define BW_SET_HASH_SEED 4

/**
 * `reserved_bytes` counts.
 */
#define BW_SET_RESERVED_BYTES 8

/**
 * `reserved_percent` counts.
 */
#define BW_SET_RESERVED_PERCENT 16

/**
 * Go on after damage was found.
 */
#define BW_ERRORS_CONTINUE 1

/**
 * Go on for reading only.
 */
#define BW_ERRORS_REMOUNT_READ_ONLY 2

/**
 * Stop the machine: for kernels.
 */
#define BW_ERRORS_PANIC 3

/**
 * Bytes of the longest salt.
 */
#define BW_VERITY_SALT_BYTES 256

/**
 * ext4, ext3 or ext2.
 */
#define BW_FORMAT_EXT4 1

/**
 * f2fs.
 */
#define BW_FORMAT_F2FS 2

/**
 * How a call went. Numbers keep their meaning over versions; new ones are added at the end.
 */
typedef enum bw_status {
  /**
   * It was done.
   */
  BW_OK = 0,
  /**
   * The device failed.
   */
  BW_IO = 1,
  /**
   * The volume's structures contradict the format or themselves.
   */
  BW_CORRUPT = 2,
  /**
   * The image holds no known format, or uses a feature that the library does not have.
   */
  BW_UNSUPPORTED_FEATURE = 3,
  /**
   * The operation is not possible on this format or kind of file.
   */
  BW_UNSUPPORTED = 4,
  /**
   * No such name.
   */
  BW_NOT_FOUND = 5,
  /**
   * The name exists already.
   */
  BW_EXISTS = 6,
  /**
   * A directory was needed.
   */
  BW_NOT_DIRECTORY = 7,
  /**
   * A directory was given where none may be.
   */
  BW_IS_DIRECTORY = 8,
  /**
   * The directory has entries.
   */
  BW_NOT_EMPTY = 9,
  /**
   * The volume is full.
   */
  BW_NO_SPACE = 10,
  /**
   * A quota is used up.
   */
  BW_QUOTA_EXCEEDED = 11,
  /**
   * The volume is open for reading only.
   */
  BW_READ_ONLY = 12,
  /**
   * Not permitted, whatever the mode bits say.
   */
  BW_NOT_PERMITTED = 13,
  /**
   * The mode bits or the ACL forbid it, or the file was not opened for it.
   */
  BW_ACCESS_DENIED = 14,
  /**
   * The name is longer than the format takes.
   */
  BW_NAME_TOO_LONG = 15,
  /**
   * The inode can have no more names.
   */
  BW_TOO_MANY_LINKS = 16,
  /**
   * The file would grow past the format's limit.
   */
  BW_FILE_TOO_LARGE = 17,
  /**
   * An argument makes no sense.
   */
  BW_INVALID = 18,
  /**
   * In use, for example by another process.
   */
  BW_BUSY = 19,
  /**
   * The two names are on different volumes or projects.
   */
  BW_CROSS_DEVICE = 20,
  /**
   * No such extended attribute.
   */
  BW_NO_ATTRIBUTE = 21,
  /**
   * The caller's buffer is too small. The needed size was returned.
   */
  BW_RANGE = 22,
  /**
   * The value is larger than the format can hold.
   */
  BW_TOO_BIG = 23,
  /**
   * No data or hole at or after this offset.
   */
  BW_NO_DATA = 24,
  /**
   * The inode is gone, or the volume was closed.
   */
  BW_STALE = 25,
  /**
   * Too many symbolic links.
   */
  BW_TOO_MANY_SYMLINKS = 26,
  /**
   * The encryption key is needed.
   */
  BW_KEY_REQUIRED = 27,
  /**
   * A value does not fit its type.
   */
  BW_OVERFLOW = 28,
  /**
   * A lock could not be had without waiting.
   */
  BW_WOULD_BLOCK = 29,
  /**
   * The wait was interrupted.
   */
  BW_INTERRUPTED = 30,
  /**
   * A write of metadata failed earlier, or a fault of the library left the volume in doubt. It refuses all changes.
   */
  BW_POISONED = 31,
  /**
   * There is no further entry.
   */
  BW_END = 100,
  /**
   * A pointer that must not be null is null.
   */
  BW_NULL = 101,
  /**
   * The handle is null, closed, or was never opened.
   */
  BW_BAD_HANDLE = 102,
  /**
   * An argument is misused: an unknown flag, a structure of another size, an index behind the end.
   */
  BW_MISUSE = 103,
  /**
   * The call came from inside a callback of the library.
   */
  BW_REENTRANT = 104,
  /**
   * A fault of the library. The volume refuses everything but closing.
   */
  BW_PANIC = 105,
} bw_status;

/**
 * An open volume. `id` 0 is none. Handles may be copied, and used from every thread.
 */
typedef struct bw_volume {
  /**
   * For the library.
   */
  uint64_t id;
} bw_volume;

/**
 * A text that ends with a NUL, or null. C keeps it unchanged until the call returns.
 */
typedef const char *bw_text;

/**
 * A time since 1970.
 */
typedef struct bw_time {
  /**
   * Seconds.
   */
  int64_t seconds;
  /**
   * Nanoseconds on top of them.
   */
  uint32_t nanoseconds;
  /**
   * 0.
   */
  uint32_t reserved;
} bw_time;

/**
 * An inode's attributes.
 */
typedef struct bw_stat {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * Size in bytes.
   */
  uint64_t size;
  /**
   * Space taken, in units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * Device number of a device file, as `makedev` codes it.
   */
  uint64_t rdev;
  /**
   * Kind and permission bits, as `st_mode` has them.
   */
  uint32_t mode;
  /**
   * `BW_TYPE_` of the inode.
   */
  uint32_t kind;
  /**
   * Number of names.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * 1 when `btime` is known.
   */
  uint32_t has_btime;
  /**
   * Last access.
   */
  struct bw_time atime;
  /**
   * Last change of the contents.
   */
  struct bw_time mtime;
  /**
   * Last change of the inode.
   */
  struct bw_time ctime;
  /**
   * Birth.
   */
  struct bw_time btime;
} bw_stat;

/**
 * What went wrong. The caller owns it; it needs no initialisation and is not freed. Every call that takes one writes it, also on success.
 */
typedef struct bw_error {
  /**
   * The status that the call returned.
   */
  enum bw_status status;
  /**
   * The closest errno; 0 on success.
   */
  int32_t os_errno;
  /**
   * A sentence for people, UTF-8, with the path concerned; empty on success.
   */
  char message[BW_MESSAGE_BYTES];
} bw_error;

/**
 * Bytes that are written, or null. C says how many; nothing else uses them until the call returns.
 */
typedef void *bw_output;

/**
 * Bytes that are read, or null. C says how many; they are readable, and unchanged until the call returns.
 */
typedef const void *bw_input;

/**
 * A rule for the entries of all sources.
 */
typedef struct bw_rule {
  /**
   * A `BW_RULE_`.
   */
  uint32_t kind;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * For the rules of times.
   */
  int64_t number;
  /**
   * For the other ones.
   */
  bw_text text;
} bw_rule;

/**
 * An array of rules, or null. C says how many; they are readable, and unchanged until the call returns.
 */
typedef const struct bw_rule *bw_rules;

/**
 * What C wants back in its callbacks. It is never followed here.
 */
typedef void *bw_user;

/**
 * Tells the progress of a build: `step` is a `BW_STEP_`. A result other than 0 stops the build, unless `step` is `BW_STEP_FINISHING`, and the call fails with
 * `BW_INTERRUPTED`. A new image is removed then; one that was there is no volume any more, unless `step` was `BW_STEP_READING`.
 */
typedef int32_t (*bw_progress)(bw_user user, uint32_t step, uint64_t done, uint64_t total);

/**
 * How a volume is made. A structure of zeroes with `struct_size` set makes an ext4 volume as large as the image or device that is there.
 */
typedef struct bw_make_options {
  /**
   * `sizeof(bw_make_options)`.
   */
  size_t struct_size;
  /**
   * `BW_MAKE_AUTO`, `BW_MAKE_EPOCH`, `BW_MAKE_OWNER`, `BW_MAKE_UUID`, `BW_MAKE_NEW`, `BW_MAKE_RESERVED`, `BW_MAKE_HASH_SEED`, `BW_MAKE_KEEP_CONFIG`,
   * `BW_MAKE_ALLOW_BACKING`.
   */
  uint32_t flags;
  /**
   * `BW_MAKE_EXT4`, `BW_MAKE_EXT3`, `BW_MAKE_EXT2`, `BW_MAKE_F2FS` or `BW_MAKE_JOURNAL`.
   */
  uint32_t format;
  /**
   * Size of the volume; 0: that of the image or device. With `BW_MAKE_AUTO`, how many bytes stay free.
   */
  uint64_t bytes;
  /**
   * One inode for so many bytes; 0: the default.
   */
  uint64_t inode_ratio;
  /**
   * Number of inodes; 0: as `inode_ratio` says.
   */
  uint64_t inodes;
  /**
   * Size of the journal in bytes; 0: by the volume's size.
   */
  uint64_t journal_bytes;
  /**
   * Hundredths of the volume for the super user.
   */
  double reserved_percent;
  /**
   * Bytes per block; 0: the default.
   */
  uint32_t block_bytes;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Bytes per inode of ext4, 128 to 1024; 0: the default.
   */
  uint32_t inode_bytes;
  /**
   * Seconds since 1970, as `SOURCE_DATE_EPOCH`.
   */
  uint64_t epoch;
  /**
   * Label, or null.
   */
  bw_text label;
  /**
   * Changes to the default features, as mke2fs's and mkfs.f2fs's `-O`, or null.
   */
  bw_text features;
  /**
   * The device or image of the volume's journal, which `BW_MAKE_JOURNAL` has made and no volume uses, or null.
   */
  bw_text journal;
  /**
   * UUID.
   */
  uint8_t uuid[16];
  /**
   * Seed of ext4's directory hashes.
   */
  uint8_t hash_seed[16];
  /**
   * The image of an earlier build of an ext4 volume, or null. What is in both stays where it was.
   */
  bw_text base;
  /**
   * The platform of container images, as `linux/arm64`; null: linux on this machine's processor.
   */
  bw_text platform;
  /**
   * Rules for the entries of all sources, or null.
   */
  bw_rules rules;
  /**
   * How many.
   */
  size_t rule_count;
  /**
   * Called from several threads at once, or null.
   */
  bw_progress progress;
  /**
   * Handed to `progress`.
   */
  bw_user user;
} bw_make_options;

/**
 * A file descriptor that is open, by C's word.
 */
typedef int32_t bw_descriptor;

/**
 * Something to put into a volume. Later sources lie over earlier ones.
 */
typedef struct bw_source {
  /**
   * A `BW_SOURCE_`.
   */
  uint32_t kind;
  /**
   * For `BW_SOURCE_TAR_FD`, `BW_SOURCE_IMAGE_FD` and `BW_SOURCE_DUMPFILE_FD`. The descriptor stays the caller's. Otherwise 0 or -1.
   */
  bw_descriptor fd;
  /**
   * For `BW_SOURCE_PATH`, `BW_SOURCE_IMAGE` and `BW_SOURCE_DUMPFILE`; the image's name for `BW_SOURCE_IMAGE_FD`; otherwise a name for messages, or null.
   */
  bw_text path;
  /**
   * For `BW_SOURCE_DUMPFILE` and `BW_SOURCE_DUMPFILE_FD`: the folder of the listing's objects, or null. Otherwise null.
   */
  bw_text objects;
  /**
   * 0.
   */
  uint64_t reserved[2];
} bw_source;

/**
 * An array of sources, or null. C says how many; they are readable, and unchanged until the call returns.
 */
typedef const struct bw_source *bw_sources;

/**
 * What a volume that was made is like.
 */
typedef struct bw_made {
  /**
   * Bytes of the volume.
   */
  uint64_t bytes;
  /**
   * Blocks of the volume.
   */
  uint64_t blocks;
  /**
   * Free blocks.
   */
  uint64_t blocks_free;
  /**
   * Files that came from the sources, directories not counted.
   */
  uint64_t files;
  /**
   * Directories that came from the sources.
   */
  uint64_t directories;
  /**
   * Bytes per block.
   */
  uint32_t block_bytes;
  /**
   * Inodes.
   */
  uint32_t inodes;
  /**
   * Free inodes.
   */
  uint32_t inodes_free;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * UUID.
   */
  uint8_t uuid[16];
} bw_made;

/**
 * A block device that the program implements. The structure is copied; the functions must stay callable until `release` was called.
 *
 * The functions return 0, or an errno such as `EIO`. They are called from threads of the library, too. They must not call the library, and must
 * not leave by `longjmp` or a C++ exception. Ranges are multiples of the logical block and lie on the device.
 */
typedef struct bw_device {
  /**
   * `sizeof(bw_device)`.
   */
  size_t struct_size;
  /**
   * `BW_DEVICE_` flags.
   */
  uint32_t flags;
  /**
   * Smallest unit of a request in bytes: a power of two from 512 to 65536; 0 means 512.
   */
  uint32_t logical_block_bytes;
  /**
   * Size of the device in bytes.
   */
  uint64_t bytes;
  /**
   * Handed to each function.
   */
  bw_user user;
  /**
   * Fills `buffer` with `bytes` bytes of the device, from `offset` on.
   */
  int32_t (*read)(bw_user user, uint64_t offset, void *buffer, size_t bytes);
  /**
   * Writes `bytes` bytes to the device, from `offset` on. May be null for a device that is only read.
   */
  int32_t (*write)(bw_user user, uint64_t offset, const void *buffer, size_t bytes);
  /**
   * Makes all writes durable that have returned. May be null for a device that is only read.
   */
  int32_t (*flush)(bw_user user);
  /**
   * May be null. The contents of the range are no longer needed.
   */
  int32_t (*discard)(bw_user user, uint64_t offset, uint64_t bytes);
  /**
   * May be null. Called once when the library will not use the device again. If opening fails, it is called before the opening returns.
   * A device that is refused as misuse is not released.
   */
  void (*release)(bw_user user);
} bw_device;

/**
 * An array of texts, or null. C says how many; they and what they lead to are readable, and unchanged until the call returns.
 */
typedef const bw_text *bw_texts;

/**
 * Where a volume is in its image, and what belongs to it. Zeroes: all of the image, and nothing else.
 */
typedef struct bw_place {
  /**
   * The first byte of the volume in the image.
   */
  uint64_t offset;
  /**
   * Bytes of the image from `offset` on; 0: all.
   */
  uint64_t bytes;
  /**
   * The device or image of an ext4 journal that is not on the volume, or null.
   */
  bw_text journal;
  /**
   * A file that keeps all changes, so that the image is only read, or null. For writing it is made when it is not there.
   */
  bw_text overlay;
  /**
   * Paths of the other devices of an f2fs volume on several, in the order of its superblock, or null. Such volumes are only read.
   */
  bw_texts devices;
  /**
   * How many.
   */
  size_t device_count;
  /**
   * `BW_ALLOW_BACKING`, or 0.
   */
  uint32_t flags;
  /**
   * 0.
   */
  uint32_t reserved;
} bw_place;

/**
 * Called from any thread with how far a check is. `phase`: 0 volume, 1 inodes, 2 directories, 3 links, 4 bitmaps. A result other than 0 stops the check, which
 * then fails with `BW_INTERRUPTED`. A repair that has begun to write is completed: calls may still come, and their results no longer count. So a check that was
 * stopped has written nothing, but the transactions of an ext4 journal that it replayed before.
 */
typedef int32_t (*bw_check_progress)(bw_user user, uint32_t phase, uint64_t done, uint64_t total);

/**
 * How a volume is checked. A structure of zeroes with `struct_size` set has the defaults, as null has.
 */
typedef struct bw_check_options {
  /**
   * `sizeof(bw_check_options)`.
   */
  size_t struct_size;
  /**
   * `BW_CHECK_READ_ONLY`, `BW_CHECK_PREEN` or `BW_CHECK_REPAIR`.
   */
  uint32_t mode;
  /**
   * `BW_CHECK_DISCARD_FSYNCED`.
   */
  uint32_t flags;
  /**
   * Keep at most this many issues; 0: 10 000. The rest is counted.
   */
  size_t issues_max;
  /**
   * ext4: use the superblock in this block; 0: the primary one.
   */
  uint64_t superblock;
  /**
   * Where the volume is.
   */
  struct bw_place place;
  /**
   * May be null.
   */
  bw_check_progress progress;
  /**
   * Handed to `progress`.
   */
  bw_user user;
} bw_check_options;

/**
 * The result of a check. `id` 0 is none.
 */
typedef struct bw_report {
  /**
   * For the library.
   */
  uint64_t id;
} bw_report;

/**
 * What a check found, in short.
 */
typedef struct bw_check_summary {
  /**
   * Issues that can be asked for.
   */
  size_t issues;
  /**
   * Issues beyond those.
   */
  uint64_t suppressed;
  /**
   * 1 when nothing worse than notes was found.
   */
  uint32_t clean;
  /**
   * 1 when something worse than a note is still there.
   */
  uint32_t uncorrected;
  /**
   * 1 when something was written to the device.
   */
  uint32_t changed;
  /**
   * The exit code that fsck programs use: 0, 1 or 4.
   */
  uint32_t exit_code;
  /**
   * Inodes of the volume.
   */
  uint64_t inodes;
  /**
   * Inodes in use.
   */
  uint64_t inodes_used;
  /**
   * Blocks of the volume.
   */
  uint64_t blocks;
  /**
   * Blocks in use.
   */
  uint64_t blocks_used;
  /**
   * Directories.
   */
  uint64_t directories;
  /**
   * Regular files.
   */
  uint64_t files;
  /**
   * Symbolic links.
   */
  uint64_t symlinks;
  /**
   * Transactions of the journal that were replayed: in memory, where nothing may be changed.
   */
  uint64_t transactions_replayed;
  /**
   * Blocks that were written.
   */
  uint64_t blocks_written;
} bw_check_summary;

/**
 * One finding.
 */
typedef struct bw_issue {
  /**
   * A `BW_SEVERITY_`.
   */
  uint32_t severity;
  /**
   * A `BW_OUTCOME_`.
   */
  uint32_t outcome;
  /**
   * The name of the issue's kind, which is stable.
   */
  char kind[BW_ISSUE_KIND_BYTES];
  /**
   * What was found, and where, for people.
   */
  char text[BW_ISSUE_TEXT_BYTES];
} bw_issue;

/**
 * An open directory. `id` 0 is none.
 */
typedef struct bw_dir {
  /**
   * For the library.
   */
  uint64_t id;
} bw_dir;

/**
 * An entry of a directory.
 */
typedef struct bw_dir_entry {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * `BW_TYPE_` of the entry.
   */
  uint32_t kind;
  /**
   * Bytes of the name.
   */
  uint32_t name_bytes;
  /**
   * The name, with a NUL behind it. It may have any other bytes but `/`.
   */
  char name[BW_NAME_BYTES];
} bw_dir_entry;

/**
 * An open file. `id` 0 is none.
 */
typedef struct bw_file {
  /**
   * For the library.
   */
  uint64_t id;
} bw_file;

/**
 * How a map is drawn. A structure of zeroes with `struct_size` set has the defaults, as null has.
 */
typedef struct bw_map_options {
  /**
   * `sizeof(bw_map_options)`.
   */
  size_t struct_size;
  /**
   * A `BW_MAP_`.
   */
  uint32_t form;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Where the volume is.
   */
  struct bw_place place;
} bw_map_options;

/**
 * How a volume is opened. A structure of zeroes with `struct_size` set has the defaults, as null has.
 */
typedef struct bw_open_options {
  /**
   * `sizeof(bw_open_options)`.
   */
  size_t struct_size;
  /**
   * `BW_OPEN_` flags.
   */
  uint32_t flags;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Budget of the volume's cache in bytes; 0: the default.
   */
  uint64_t cache_bytes;
  /**
   * Where the volume is.
   */
  struct bw_place place;
} bw_open_options;

/**
 * The partitions of a disk. `id` 0 is none.
 */
typedef struct bw_partitions {
  /**
   * For the library.
   */
  uint64_t id;
} bw_partitions;

/**
 * A table of partitions.
 */
typedef struct bw_table {
  /**
   * A `BW_TABLE_`.
   */
  uint32_t scheme;
  /**
   * Bytes of the sectors that the table counts in; 0 without one.
   */
  uint32_t sector_bytes;
  /**
   * Bytes of the disk.
   */
  uint64_t disk_bytes;
  /**
   * Partitions.
   */
  size_t count;
  /**
   * Faults of the table that do not prevent its use.
   */
  size_t remarks;
  /**
   * The disk's id: a UUID (GPT), eight hexadecimal digits (MBR), or nothing.
   */
  char id[BW_PARTITION_ID_BYTES];
} bw_table;

/**
 * A partition, and what it holds. Texts that are not known are empty.
 */
typedef struct bw_partition {
  /**
   * Its number, from 1, as in the path `disk.img:p2`. Logical partitions of an MBR begin at 5.
   */
  uint32_t number;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Its first byte on the disk.
   */
  uint64_t start;
  /**
   * Its length in bytes.
   */
  uint64_t bytes;
  /**
   * Its name (GPT), as in the path `disk.img:p=root`.
   */
  char name[BW_PARTITION_NAME_BYTES];
  /**
   * Its unique id (GPT).
   */
  char uuid[BW_PARTITION_ID_BYTES];
  /**
   * Its type: a GUID, or a byte as `0x83`.
   */
  char kind[BW_PARTITION_ID_BYTES];
  /**
   * The name of that type.
   */
  char kind_name[BW_PARTITION_ID_BYTES];
  /**
   * The format of what it holds, as blkid names it: `ext4` (also ext2 and ext3), `f2fs`, `fat32` and so on.
   */
  char format[BW_PARTITION_ID_BYTES];
  /**
   * The label of what it holds.
   */
  char label[BW_PARTITION_LABEL_BYTES];
  /**
   * Why it cannot be used.
   */
  char problem[BW_PARTITION_TEXT_BYTES];
} bw_partition;

/**
 * Called with how far a change is: `phase` is a `BW_PHASE_`. Another result than 0 stops the change, which then fails with `BW_INTERRUPTED`. The volume is
 * whole then, and the same call makes the rest.
 */
typedef int32_t (*bw_change_progress)(bw_user user, uint32_t phase, uint64_t done, uint64_t total);

/**
 * How a volume is changed. A structure of zeroes with `struct_size` set has the defaults, as null has.
 */
typedef struct bw_change_options {
  /**
   * `sizeof(bw_change_options)`.
   */
  size_t struct_size;
  /**
   * Where the volume is.
   */
  struct bw_place place;
  /**
   * May be null.
   */
  bw_change_progress progress;
  /**
   * Handed to `progress`.
   */
  bw_user user;
} bw_change_options;

/**
 * What a change of size came to.
 */
typedef struct bw_resized {
  /**
   * Bytes of the volume before.
   */
  uint64_t bytes_before;
  /**
   * Bytes of the volume now.
   */
  uint64_t bytes;
  /**
   * Bytes per block.
   */
  uint32_t block_bytes;
  /**
   * 0.
   */
  uint32_t reserved;
} bw_resized;

/**
 * Settings of a volume to change. Zeroes and null leave a setting as it is; `struct_size` must be set.
 */
typedef struct bw_settings {
  /**
   * `sizeof(bw_settings)`.
   */
  size_t struct_size;
  /**
   * `BW_SET_` flags.
   */
  uint32_t flags;
  /**
   * The reaction to damage: a `BW_ERRORS_`.
   */
  uint32_t errors;
  /**
   * The label, or null.
   */
  bw_text label;
  /**
   * Changes of the default mount options, such as `acl,^user_xattr`, or null.
   */
  bw_text default_options;
  /**
   * Changes of the features, such as `fast_commit,^has_journal`, or null.
   */
  bw_text features;
  /**
   * Bytes for the super user.
   */
  uint64_t reserved_bytes;
  /**
   * Hundredths of the volume for the super user, 0 to 50.
   */
  double reserved_percent;
  /**
   * Size of the journal in bytes.
   */
  uint64_t journal_bytes;
  /**
   * UUID.
   */
  uint8_t uuid[16];
  /**
   * Seed of the directory hashes.
   */
  uint8_t hash_seed[16];
  /**
   * f2fs: changes of the names that make files cold, such as `mp4,^jpg`, or null.
   */
  bw_text cold_extensions;
  /**
   * f2fs: changes of the names that make files hot, or null.
   */
  bw_text hot_extensions;
} bw_settings;

/**
 * How a tree is made. A structure of zeroes with `struct_size` set has the defaults, as null has.
 */
typedef struct bw_verity_options {
  /**
   * `sizeof(bw_verity_options)`.
   */
  size_t struct_size;
  /**
   * The file that the tree goes to, which is replaced unless it holds a volume or a disk; null: behind the volume, in the image.
   */
  bw_text tree;
  /**
   * The salt.
   */
  bw_input salt;
  /**
   * Its bytes, at most `BW_VERITY_SALT_BYTES`; 0: a salt of 32 bytes that follow from the UUID.
   */
  size_t salt_bytes;
  /**
   * UUID of the tree. That of the volume is a good choice.
   */
  uint8_t uuid[16];
} bw_verity_options;

/**
 * What `veritysetup open` and the kernel's command line need.
 */
typedef struct bw_verity_tree {
  /**
   * The one thing that must come from elsewhere than the image.
   */
  uint8_t root_hash[32];
  /**
   * The salt.
   */
  uint8_t salt[BW_VERITY_SALT_BYTES];
  /**
   * Its bytes.
   */
  uint32_t salt_bytes;
  /**
   * Bytes per block: 4096.
   */
  uint32_t block_bytes;
  /**
   * Blocks that are covered.
   */
  uint64_t data_blocks;
  /**
   * Where the tree begins in its file, in bytes.
   */
  uint64_t hash_offset;
  /**
   * Bytes of the tree.
   */
  uint64_t tree_bytes;
} bw_verity_tree;

/**
 * What a volume is like, and how full it is.
 */
typedef struct bw_volume_info {
  /**
   * `BW_FORMAT_EXT4`, `BW_FORMAT_F2FS`, or 0 for a format that is newer than this header.
   */
  uint32_t format;
  /**
   * 1 when changes are refused.
   */
  uint32_t read_only;
  /**
   * The unit of the block counts, in bytes.
   */
  uint32_t block_bytes;
  /**
   * The longest name in bytes.
   */
  uint32_t name_bytes_max;
  /**
   * Blocks for data.
   */
  uint64_t blocks;
  /**
   * Free blocks.
   */
  uint64_t blocks_free;
  /**
   * Free blocks for users other than root.
   */
  uint64_t blocks_available;
  /**
   * Inodes.
   */
  uint64_t inodes;
  /**
   * Free inodes.
   */
  uint64_t inodes_free;
} bw_volume_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The number of the ABI that the library has: `BW_ABI` of the header that it was built with.
 */
uint32_t bw_abi(void);

/**
 * The version of the library, as `0.1.0`. The text is constant.
 */
const char *bw_version(void);

/**
 * Attributes; a symbolic link at the path's end is followed.
 */
enum bw_status bw_stat_path(struct bw_volume volume,
                            bw_text path,
                            struct bw_stat *stat,
                            struct bw_error *error);

/**
 * Attributes; a symbolic link at the path's end is not followed.
 */
enum bw_status bw_lstat_path(struct bw_volume volume,
                             bw_text path,
                             struct bw_stat *stat,
                             struct bw_error *error);

/**
 * Sets the permission bits (`07777`).
 */
enum bw_status bw_chmod(struct bw_volume volume, bw_text path, uint32_t mode, struct bw_error *error);

/**
 * Sets owner and group; `BW_KEEP_ID` leaves one as it is. A symbolic link at the path's end is followed.
 */
enum bw_status bw_chown(struct bw_volume volume,
                        bw_text path,
                        uint32_t uid,
                        uint32_t gid,
                        struct bw_error *error);

/**
 * As `bw_chown`, without following a symbolic link at the path's end.
 */
enum bw_status bw_lchown(struct bw_volume volume,
                         bw_text path,
                         uint32_t uid,
                         uint32_t gid,
                         struct bw_error *error);

/**
 * Sets the times of the last access and of the last change of the contents. Null leaves one as it is. `flags` is 0, or `BW_NO_FOLLOW` for a symbolic
 * link itself.
 */
enum bw_status bw_set_times(struct bw_volume volume,
                            bw_text path,
                            const struct bw_time *accessed,
                            const struct bw_time *modified,
                            uint32_t flags,
                            struct bw_error *error);

/**
 * Gets the value of an extended attribute, for example `user.note`. `bytes` gets its length. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too
 * small. Symbolic links are not followed.
 */
enum bw_status bw_get_xattr(struct bw_volume volume,
                            bw_text path,
                            bw_text name,
                            bw_output buffer,
                            size_t room,
                            size_t *bytes,
                            struct bw_error *error);

/**
 * Sets an extended attribute. `flags`: 0, `BW_XATTR_CREATE` or `BW_XATTR_REPLACE`. Symbolic links are not followed.
 */
enum bw_status bw_set_xattr(struct bw_volume volume,
                            bw_text path,
                            bw_text name,
                            bw_input value,
                            size_t bytes,
                            uint32_t flags,
                            struct bw_error *error);

/**
 * Removes an extended attribute. Symbolic links are not followed.
 */
enum bw_status bw_remove_xattr(struct bw_volume volume, bw_text path, bw_text name, struct bw_error *error);

/**
 * Gets the names of all extended attributes, each with a NUL behind it, in byte order. `buffer`, `room` and `bytes` as in `bw_get_xattr`.
 */
enum bw_status bw_list_xattr(struct bw_volume volume,
                             bw_text path,
                             bw_output buffer,
                             size_t room,
                             size_t *bytes,
                             struct bw_error *error);

/**
 * Makes a volume in the image or on the block device at `path`, with what the sources hold; without sources (`count` 0) an empty one. A missing image is
 * made; one that is there is replaced, unless it is in use. `options` and `report` may be null.
 */
enum bw_status bw_make(bw_text path,
                       const struct bw_make_options *options,
                       bw_sources sources,
                       size_t count,
                       struct bw_made *report,
                       struct bw_error *error);

/**
 * As `bw_make`, on a device of the program.
 */
enum bw_status bw_make_on_device(const struct bw_device *device,
                                 const struct bw_make_options *options,
                                 bw_sources sources,
                                 size_t count,
                                 struct bw_made *report,
                                 struct bw_error *error);

/**
 * Checks the volume at `path`, which must not be open, and repairs it as the options say. Damage is no error: it is in the report. `options` may be null.
 */
enum bw_status bw_check(bw_text path,
                        const struct bw_check_options *options,
                        struct bw_report *report,
                        struct bw_error *error);

/**
 * As `bw_check`, on a device of the program. Of the options' `place`, only `journal` and `flags` may be set.
 */
enum bw_status bw_check_device(const struct bw_device *device,
                               const struct bw_check_options *options,
                               struct bw_report *report,
                               struct bw_error *error);

/**
 * What the check found, in short.
 */
enum bw_status bw_report_summary(struct bw_report report,
                                 struct bw_check_summary *summary,
                                 struct bw_error *error);

/**
 * Gets an issue; `index` is from 0.
 */
enum bw_status bw_report_issue(struct bw_report report,
                               size_t index,
                               struct bw_issue *issue,
                               struct bw_error *error);

/**
 * Gets the whole text of an issue, with a NUL behind it, which `bytes` counts. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too small.
 */
enum bw_status bw_report_issue_text(struct bw_report report,
                                    size_t index,
                                    bw_output buffer,
                                    size_t room,
                                    size_t *bytes,
                                    struct bw_error *error);

/**
 * Frees the report.
 */
enum bw_status bw_report_close(struct bw_report report, struct bw_error *error);

/**
 * Opens a directory for listing.
 */
enum bw_status bw_dir_open(struct bw_volume volume, bw_text path, struct bw_dir *dir, struct bw_error *error);

/**
 * Gets the next entry, in the directory's own order, without `.` and `..`. `BW_END` behind the last. Entries that come and go meanwhile may or may not be
 * seen; all others are seen once.
 */
enum bw_status bw_dir_next(struct bw_dir dir,
                           struct bw_dir_entry *entry,
                           struct bw_error *error);

/**
 * Closes the directory.
 */
enum bw_status bw_dir_close(struct bw_dir dir, struct bw_error *error);

/**
 * The name of a status, for example `BW_NOT_FOUND`; `BW_?` for a number that is none. The text is constant.
 */
const char *bw_status_name(int32_t status);

/**
 * Opens a file. `mode` has the permission bits of a file that is made.
 */
enum bw_status bw_file_open(struct bw_volume volume,
                            bw_text path,
                            uint32_t flags,
                            uint32_t mode,
                            struct bw_file *file,
                            struct bw_error *error);

/**
 * Reads up to `bytes` bytes at `offset`. `done` gets how many were read: fewer only at the end of the file.
 */
enum bw_status bw_file_read(struct bw_file file,
                            uint64_t offset,
                            bw_output buffer,
                            size_t bytes,
                            size_t *done,
                            struct bw_error *error);

/**
 * Writes `bytes` bytes at `offset`, or at the end of a file that was opened with `BW_APPEND`. `done` may be null; it gets how many were written. When it
 * is not null, a write that finds room for a part succeeds with that part; otherwise such a write fails with `BW_NO_SPACE`.
 */
enum bw_status bw_file_write(struct bw_file file,
                             uint64_t offset,
                             bw_input buffer,
                             size_t bytes,
                             size_t *done,
                             struct bw_error *error);

/**
 * Writes at the end of the file, in one piece. `offset` may be null; it gets where that was.
 */
enum bw_status bw_file_append(struct bw_file file,
                              bw_input buffer,
                              size_t bytes,
                              uint64_t *offset,
                              struct bw_error *error);

/**
 * The file's attributes, its size among them.
 */
enum bw_status bw_file_stat(struct bw_file file, struct bw_stat *stat, struct bw_error *error);

/**
 * Cuts or extends the file.
 */
enum bw_status bw_file_truncate(struct bw_file file, uint64_t bytes, struct bw_error *error);

/**
 * Makes the file's data and metadata durable (fsync).
 */
enum bw_status bw_file_sync(struct bw_file file, struct bw_error *error);

/**
 * Makes the file's data durable, with the metadata that is needed to read it back (fdatasync).
 */
enum bw_status bw_file_sync_data(struct bw_file file, struct bw_error *error);

/**
 * Allocates space for a range. The file grows to the range's end if it is shorter.
 */
enum bw_status bw_file_allocate(struct bw_file file, uint64_t offset, uint64_t bytes, struct bw_error *error);

/**
 * Frees the space of a range, which reads as zeroes afterwards.
 */
enum bw_status bw_file_punch_hole(struct bw_file file,
                                  uint64_t offset,
                                  uint64_t bytes,
                                  struct bw_error *error);

/**
 * The first byte at or after `offset` that holds data. `BW_NO_DATA` when there is none.
 */
enum bw_status bw_file_seek_data(struct bw_file file,
                                 uint64_t offset,
                                 uint64_t *found,
                                 struct bw_error *error);

/**
 * The first byte at or after `offset` that is in a hole; the end of the file counts as one.
 */
enum bw_status bw_file_seek_hole(struct bw_file file,
                                 uint64_t offset,
                                 uint64_t *found,
                                 struct bw_error *error);

/**
 * Copies a range to another file of the same volume, holes as holes. `done` gets how many bytes: fewer only at the end of `from`, or when the volume is full.
 */
enum bw_status bw_file_copy_range(struct bw_file from,
                                  uint64_t offset,
                                  struct bw_file to,
                                  uint64_t to_offset,
                                  uint64_t bytes,
                                  uint64_t *done,
                                  struct bw_error *error);

/**
 * Closes the file, without making it durable. Calls of other threads on it are finished by themselves.
 */
enum bw_status bw_file_close(struct bw_file file, struct bw_error *error);

/**
 * Draws a map of the volume at `path`, which must not be open for writing, and writes it to an open descriptor, which stays the caller's. Damage is drawn; it is
 * no error. `options` may be null.
 */
enum bw_status bw_map(bw_text path,
                      const struct bw_map_options *options,
                      bw_descriptor fd,
                      struct bw_error *error);

/**
 * Makes a directory with these permission bits.
 */
enum bw_status bw_mkdir(struct bw_volume volume, bw_text path, uint32_t mode, struct bw_error *error);

/**
 * Makes a directory and those that are missing on the way to it, with permission bits 0755. One that is there is left as it is.
 */
enum bw_status bw_mkdir_all(struct bw_volume volume,
                            bw_text path,
                            struct bw_error *error);

/**
 * Makes a regular file, device, pipe or socket: `kind` is a `BW_TYPE_`. `rdev`: the number of a device, as `makedev` codes it.
 */
enum bw_status bw_mknod(struct bw_volume volume,
                        bw_text path,
                        uint32_t kind,
                        uint32_t mode,
                        uint64_t rdev,
                        struct bw_error *error);

/**
 * Makes a symbolic link at `path` with this target.
 */
enum bw_status bw_symlink(struct bw_volume volume, bw_text target, bw_text path, struct bw_error *error);

/**
 * Gets the target of a symbolic link, with a NUL behind it, which `bytes` counts. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too small.
 */
enum bw_status bw_readlink(struct bw_volume volume,
                           bw_text path,
                           bw_output buffer,
                           size_t room,
                           size_t *bytes,
                           struct bw_error *error);

/**
 * Gives a file one more name.
 */
enum bw_status bw_link(struct bw_volume volume, bw_text original, bw_text path, struct bw_error *error);

/**
 * Renames; `mode` is a `BW_RENAME_`.
 */
enum bw_status bw_rename(struct bw_volume volume,
                         bw_text from,
                         bw_text to,
                         uint32_t mode,
                         struct bw_error *error);

/**
 * Removes a name of anything but a directory.
 */
enum bw_status bw_unlink(struct bw_volume volume, bw_text path, struct bw_error *error);

/**
 * Removes an empty directory.
 */
enum bw_status bw_rmdir(struct bw_volume volume, bw_text path, struct bw_error *error);

/**
 * Removes what is at a path, a directory with all that is in it. Symbolic links are not followed.
 */
enum bw_status bw_remove_all(struct bw_volume volume, bw_text path, struct bw_error *error);

/**
 * Opens the volume in an image or on a block device. `path` may name a partition (`disk.img:p2`, `disk.img:p=root`) or an NBD export. `options` may be
 * null.
 */
enum bw_status bw_volume_open(bw_text path,
                              const struct bw_open_options *options,
                              struct bw_volume *volume,
                              struct bw_error *error);

/**
 * Opens the volume on a device of the program. `options` may be null. Of its `place`, only `journal` and `flags` may be set.
 */
enum bw_status bw_volume_open_device(const struct bw_device *device,
                                     const struct bw_open_options *options,
                                     struct bw_volume *volume,
                                     struct bw_error *error);

/**
 * Writes everything, marks the volume clean and closes it, also when that fails. Calls of other threads are finished first. Files and directories that are
 * still open fail from then on with `BW_STALE`; they have to be closed all the same.
 */
enum bw_status bw_volume_close(struct bw_volume volume,
                               struct bw_error *error);

/**
 * Reads the table of partitions of the disk at `path`: an image, also in a container (qcow2), a block device or an NBD export. `flags` is
 * `BW_ALLOW_BACKING` or 0. A disk without a table has none of them, and is no error.
 */
enum bw_status bw_partitions_read(bw_text path,
                                  uint32_t flags,
                                  struct bw_partitions *partitions,
                                  struct bw_error *error);

/**
 * The table.
 */
enum bw_status bw_partitions_table(struct bw_partitions partitions,
                                   struct bw_table *table,
                                   struct bw_error *error);

/**
 * Gets a partition; `index` is from 0.
 */
enum bw_status bw_partitions_get(struct bw_partitions partitions,
                                 size_t index,
                                 struct bw_partition *partition,
                                 struct bw_error *error);

/**
 * Frees the table.
 */
enum bw_status bw_partitions_close(struct bw_partitions partitions, struct bw_error *error);

/**
 * Makes the volume at `path`, which must not be open, as large as `bytes`, or a little smaller. The file of a plain image gets longer or shorter with it.
 * `flags` has `BW_RESIZE_` flags. `options` and `resized` may be null.
 */
enum bw_status bw_resize(bw_text path,
                         uint64_t bytes,
                         uint32_t flags,
                         const struct bw_change_options *options,
                         struct bw_resized *resized,
                         struct bw_error *error);

/**
 * Changes settings of the volume at `path`, which must not be open: label, UUID, features and so on. `options` may be null. A journal on another device is
 * attached by `options.place.journal` with the feature `has_journal`. What is not possible is refused before anything is written.
 */
enum bw_status bw_set(bw_text path,
                      const struct bw_settings *to,
                      const struct bw_change_options *options,
                      struct bw_error *error);

/**
 * Makes a tree of hashes (dm-verity) over the first `bytes` of the image or block device at `path`: `bytes` of `bw_made`. An image that is in use gives
 * `BW_BUSY`; with `tree`, one that is open for reading only is taken. A volume that is written to afterwards no longer matches its tree. `options` may be null.
 *
 * `BW_INVALID`: the image is shorter than `bytes` or its volume longer; behind `bytes`, an image file has something else than zeroes and an earlier tree; `tree` is
 * the image, or holds a volume or a disk. `BW_UNSUPPORTED`: the image is in a container, such as qcow2. What a block device has behind `bytes` is overwritten.
 */
enum bw_status bw_verity_seal(bw_text path,
                              uint64_t bytes,
                              const struct bw_verity_options *options,
                              struct bw_verity_tree *tree,
                              struct bw_error *error);

/**
 * Tells what the volume is like, and how full it is.
 */
enum bw_status bw_volume_stat(struct bw_volume volume, struct bw_volume_info *info, struct bw_error *error);

/**
 * Makes everything durable that was done before.
 */
enum bw_status bw_volume_sync(struct bw_volume volume, struct bw_error *error);

/**
 * Discards all free blocks: in an image file they become holes. `bytes` may be null; it gets how many bytes were discarded.
 */
enum bw_status bw_volume_trim(struct bw_volume volume,
                              uint64_t *bytes,
                              struct bw_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BLOCKWRIGHT_H */
