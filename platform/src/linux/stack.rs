//! A thread's stack: memory that it needed only once is given back.
//!
//! Always holds: only pages of the calling thread's own stack are given back, all of them below the frames
//! that are in use. A handshake or the first reading of a configuration uses 50 to 100 KiB of stack, and the
//! thread then waits for days in the uppermost 8: without this those pages would stay the process's own for
//! as long.
#![allow(unsafe_code, reason = "madvise and the bounds of a stack have no safe wrapper in nix")]

use std::mem::MaybeUninit;
use std::ptr;

use nix::libc;

/// Bytes kept below a variable of `give_back_stack`: the rest of its frame, that of `madvise`, the 128 bytes
/// that a leaf function may use below its frame, and a reserve.
const KEPT_BYTES: usize = 2 * 1024;

/// Gives back the pages of this thread's stack below the caller's frame; later calls that need as much get
/// new ones. It has no effect if the kernel or the C library refuses.
///
/// Never inlined: a caller's frame may be larger than the part that is kept, and reach below the variable.
#[inline(never)]
pub fn give_back_stack() {
    let mark = 0_u8;
    let here = ptr::from_ref(&mark).addr();
    let (Some(lowest), Some(page)) = (lowest(), page_bytes()) else { return };
    let (begin, end) = (lowest.next_multiple_of(page), here.saturating_sub(KEPT_BYTES) / page * page);
    if begin < end {
        // SAFETY: the range is in this thread's own stack, which no other thread uses, and ends at least
        // KEPT_BYTES below the frame of this function. Nothing below the frames in use is needed: neither the
        // compiler nor a signal handler, whose frames are gone when it returns, reads memory there that it
        // has not written since.
        let _ =
            unsafe { libc::madvise(ptr::without_provenance_mut(begin), end - begin, libc::MADV_DONTNEED) };
    }
}

/// The lowest address of this thread's stack.
fn lowest() -> Option<usize> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: it fills `attributes`, or reports that it did not.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut address, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: `attributes` was filled above; the two others are ours.
    let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut address, &raw mut bytes) };
    // SAFETY: it was filled above, and is not used after this.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (found == 0 && !address.is_null()).then(|| address.addr())
}

pub(super) fn page_bytes() -> Option<usize> {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
    usize::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    const DEEP_BYTES: usize = 256 * 1024;

    #[inline(never)]
    fn goes_deep() {
        black_box([1_u8; DEEP_BYTES]);
    }

    /// Pages of this thread's stack that are in memory.
    #[inline(never)]
    fn resident() -> usize {
        let mark = 0_u8;
        let page = page_bytes().unwrap();
        let begin = lowest().unwrap().next_multiple_of(page);
        let end = ptr::from_ref(&mark).addr() / page * page;
        let mut pages = vec![0_u8; (end - begin) / page];
        // SAFETY: the vector has a byte for each page of the range.
        let done = unsafe {
            libc::mincore(ptr::without_provenance_mut(begin), end - begin, pages.as_mut_ptr().cast())
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn stack_that_was_needed_once_is_given_back() {
        let thread = std::thread::Builder::new().stack_size(4 * DEEP_BYTES);
        let thread = thread.spawn(|| {
            let before = resident();
            goes_deep();
            let deep = resident();
            give_back_stack();
            let after = resident();
            goes_deep();
            (before, deep, after, resident())
        });
        let (before, deep, after, again) = thread.unwrap().join().unwrap();
        let most = DEEP_BYTES / page_bytes().unwrap();
        assert!(deep >= most && again >= most, "{before} pages, then {deep}, {after}, {again}");
        assert!(
            after <= before + KEPT_BYTES / page_bytes().unwrap() + 2,
            "{before} pages, then {deep}, {after}"
        );
    }
}
