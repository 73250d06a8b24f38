#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The first program of a Linux in tests: it writes a file onto its root and switches the power off.
 * In an initial RAM disk, which has f2fs.ko, it loads that module first and starts the program on the second partition.
 */
int main(void) {
    static const char *const modules[] = {"/crc32_generic.ko", "/f2fs.ko"};
    char buf[4096];
    ssize_t n;
    if (access(modules[1], F_OK) == 0) {
        for (int i = 0; i < 2; i++) {
            int fd = open(modules[i], O_RDONLY);
            if (fd >= 0 && syscall(SYS_finit_module, fd, "", 0) != 0) perror(modules[i]);
        }
        mkdir("/dev", 0755);
        mkdir("/new", 0755);
        mount("dev", "/dev", "devtmpfs", 0, NULL);
        if (mount("/dev/ubda2", "/new", "f2fs", 0, NULL) != 0) perror("mount");
        else if (chroot("/new") == 0 && chdir("/") == 0) execl("/sbin/init", "init", (char *)NULL);
        reboot(RB_POWER_OFF);
    }
    mount("proc", "/proc", "proc", 0, NULL);
    int from = open("/proc/mounts", O_RDONLY), to = open("/mounts-inside", O_CREAT | O_WRONLY, 0644);
    while ((n = read(from, buf, sizeof buf)) > 0) if (write(to, buf, n) != n) perror("write");
    close(from);
    close(to);
    umount("/proc");
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    reboot(RB_POWER_OFF);
    return 1;
}
