//! The program's code and constants: memory that only the start needed is given back.
//!
//! Always holds: only pages that cannot be written are given back, and they return from the kernel's cache,
//! or from flash, when they are used again. The kernel maps code in pieces of 64 KiB around the executed
//! pages, and keeps them mapped for as long as the process lives: without this an agent that only renews its
//! Lease would keep the code that read its configuration, made its keys and did its handshakes.
#![allow(unsafe_code, reason = "madvise and the segments of the program have no safe wrapper in nix")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use nix::libc;

use super::stack::page_bytes;

/// Removes the program's code and constants from this process's memory; code that runs again is mapped again,
/// which costs a minor fault for each 64 KiB. It has no effect if the kernel or the C library refuses.
/// Breakpoints that a debugger wrote into the code are lost.
pub fn give_back_code() {
    let Some(page) = page_bytes() else { return };
    for (begin, end) in read_only_segments(page) {
        // SAFETY: the range is a segment of the running program that is mapped from its file and not
        // writable: nothing in it differs from the file, so each access finds the same bytes afterwards.
        let _ =
            unsafe { libc::madvise(ptr::without_provenance_mut(begin), end - begin, libc::MADV_DONTNEED) };
    }
}

/// The beginnings and ends of the program's read-only segments, in whole pages; libraries are not included.
fn read_only_segments(page: usize) -> Vec<(usize, usize)> {
    let mut segments = Vec::with_capacity(4);
    // SAFETY: `add_segments` uses the pointer as what it is, a vector that no other code uses until this call
    // returns.
    unsafe { libc::dl_iterate_phdr(Some(add_segments), ptr::from_mut(&mut segments).cast()) };
    let whole_pages = |(begin, end): (usize, usize)| (begin / page * page, end.next_multiple_of(page));
    segments.into_iter().map(whole_pages).collect()
}

/// Called by `dl_iterate_phdr`: adds the segments of the object to the vector that `segments` points to, and
/// ends the iteration, because the first object is the program.
unsafe extern "C" fn add_segments(
    object: *mut libc::dl_phdr_info,
    _bytes: libc::size_t,
    segments: *mut c_void,
) -> c_int {
    // SAFETY: `dl_iterate_phdr` gives an object that lives during this call, with as many headers as it
    // states; `segments` is the pointer that `read_only_segments` passed.
    let (base, headers, segments) = unsafe {
        let object = &*object;
        let headers = slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object.dlpi_addr, headers, &mut *segments.cast::<Vec<(usize, usize)>>())
    };
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let begin = (base + header.p_vaddr) as usize;
            segments.push((begin, begin + header.p_memsz as usize));
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// KiB of the program's code that this process has in memory, by the kernel's count.
    fn resident() -> u64 {
        let program = std::env::current_exe().expect("a test has a program");
        let program = program.to_str().expect("its path is text");
        let maps = fs::read_to_string("/proc/self/smaps").expect("the kernel tells");
        let mut of_code = false;
        let mut sum = 0;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("Rss:"), Some(kib)) if of_code => sum += kib.parse::<u64>().expect("a number"),
                (Some(_), Some(rights)) if rights.len() == 4 && rights.ends_with('p') => {
                    of_code = rights == "r-xp" && line.ends_with(program);
                }
                _ => {}
            }
        }
        sum
    }

    #[test]
    fn code_that_is_not_used_leaves_the_memory() {
        let page = page_bytes().expect("a page has a size");
        for (begin, end) in read_only_segments(page) {
            for address in (begin..end).step_by(page) {
                // SAFETY: the address is in a segment of this program, which is mapped, at least for reading.
                unsafe { ptr::with_exposed_provenance::<u8>(address).read_volatile() };
            }
        }
        let before = resident();
        give_back_code();
        let after = resident();
        assert!(before > 500, "{before} KiB of code were read");
        assert!(after < before / 2, "{after} of {before} KiB are left");
    }
}
