/* Lets user-mode-linux run on processors whose extended state is larger than it knows.
 *
 * Linux takes a thread's extended state (PTRACE_SETREGSET, NT_X86_XSTATE) whole or not at all, and the guest's kernel has a buffer of
 * a fixed size for it, which the tiles of AMX do not fit: every guest then ends with "ptrace set fp regs failed, errno = 14". The guest's
 * programs use none of what lies beyond that buffer, so what the thread has there is given back as it is.
 *
 * Loaded before the C library (LD_PRELOAD) into linux.uml alone. Nothing here allocates: the guest's kernel calls it on its own stacks.
 *
 * Sources: ptrace(2), PTRACE_GETREGSET and PTRACE_SETREGSET; the Intel manual's chapter on XSAVE.
 */
#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

/* The guest's kernel is one thread; 64 KiB hold what any processor has. */
static unsigned char whole[65536] __attribute__((aligned(64)));

long ptrace(enum __ptrace_request request, ...)
{
	__builtin_va_list arguments;
	__builtin_va_start(arguments, request);
	pid_t pid = __builtin_va_arg(arguments, pid_t);
	void *addr = __builtin_va_arg(arguments, void *);
	void *data = __builtin_va_arg(arguments, void *);
	__builtin_va_end(arguments);

	if (request == PTRACE_SETREGSET && (size_t)addr == NT_X86_XSTATE) {
		const struct iovec *given = data;
		struct iovec all = { whole, sizeof whole };
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, addr, &all) == 0 && all.iov_len > given->iov_len) {
			memcpy(whole, given->iov_base, given->iov_len);
			return syscall(SYS_ptrace, request, pid, addr, &all);
		}
	}
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		/* The system call stores the word; the library's function returns it. */
		long word;
		long failed = syscall(SYS_ptrace, request, pid, addr, &word);
		if (failed)
			return -1;
		errno = 0;
		return word;
	}
	return syscall(SYS_ptrace, request, pid, addr, data);
}
