"""The filter of system calls for programs: a call that is not listed fails with EPERM."""

from __future__ import annotations

import errno
from functools import cache
from importlib import import_module
from tempfile import TemporaryFile

from loopline.errors import LooplineError
from loopline.sandbox.execution import Feature

_ALLOWED = """
access alarm arch_prctl brk capget chdir chmod clock_getres clock_gettime clock_nanosleep close close_range
copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod
fchmodat fcntl fdatasync fgetxattr flistxattr flock fork fstat fstatfs fsync ftruncate futex futex_waitv
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer
getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid
gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch kill
lgetxattr link linkat listxattr llistxattr lseek lstat madvise membarrier mincore mkdir mkdirat mlock mmap
mprotect mremap msync munlock munmap nanosleep newfstatat open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv recvfrom recvmsg rename renameat renameat2 restart_syscall
rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_setaffinity sched_yield select sendfile sendmsg sendto set_robust_list
set_tid_address setitimer setpgid setrlimit setsid shutdown sigaltstack splice stat statfs statx
symlink symlinkat sync_file_range sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname
unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev getsockopt getsockname
getpeername setsockopt
"""
"""System calls of Python programs and shells. Calls for sockets, mounts, users, keys and tracing are not in the list."""

_NEW_NAMESPACES = 0x7E02_0000
_UNIX = 1
_TERMINAL_QUERIES = (0x5401, 0x540F, 0x5413)
_DESCRIPTOR_FLAGS = (0x541B, 0x5421, 0x5450, 0x5451)


class FilterUnavailable(LooplineError):
    """The filter cannot be made on this machine; the message says what to install."""


@cache
def filter_program() -> bytes:
    """Return the filter as a BPF program for the kernel.

    Raises:
        FilterUnavailable: `pyseccomp` or the library libseccomp is not installed.
    """
    try:
        library = import_module("pyseccomp")
    except (ImportError, OSError, RuntimeError) as error:
        raise FilterUnavailable(
            f"{error}: pip install 'loopline[sandbox]' and apt-get install libseccomp2"
        ) from error
    allow = library.ALLOW
    argument = library.Arg
    calls = library.SyscallFilter(library.ERRNO(errno.EPERM))
    for name in _ALLOWED.split():
        calls.add_rule(allow, name)
    for request in (*_TERMINAL_QUERIES, *_DESCRIPTOR_FLAGS):
        # The kernel reads 32 bits of the request, the filter 64: only the listed 64-bit values are allowed.
        calls.add_rule(allow, "ioctl", argument(1, library.EQ, request))
    # Only its own priority: the first process of the sandbox may have the same user, and must keep its priority.
    calls.add_rule(allow, "setpriority", argument(0, library.EQ, 0), argument(1, library.EQ, 0))
    calls.add_rule(allow, "socketpair", argument(0, library.EQ, _UNIX))
    calls.add_rule(allow, "clone", argument(0, library.MASKED_EQ, _NEW_NAMESPACES, 0))
    # The C library falls back to clone, whose flags a filter can read.
    calls.add_rule(library.ERRNO(errno.ENOSYS), "clone3")
    with TemporaryFile() as file:
        calls.export_bpf(file)
        file.seek(0)
        return file.read()


def seccomp_feature() -> Feature:
    """Check whether the filter can be made on this machine."""
    try:
        filter_program()
    except FilterUnavailable as error:
        return Feature("seccomp", False, str(error))
    return Feature("seccomp", True, "pyseccomp")
