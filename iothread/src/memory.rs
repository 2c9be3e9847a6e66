//! Raw memory: page-aligned regions for buffers, recycled blocks for operations and tasks.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;

pub(crate) const PAGE: usize = 4096;

/// Anonymous page-aligned memory, present from the start so that no fault meets the data path.
pub(crate) struct Region {
    ptr: NonNull<u8>,
    len: usize,
}

impl Region {
    /// Maps `len` bytes (rounded up to pages), zeroed. `huge` asks for huge pages where the
    /// kernel has some; it is a hint.
    pub(crate) fn new(len: usize, huge: bool) -> io::Result<Region> {
        let len = len.max(1).next_multiple_of(PAGE);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(p.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        if huge {
            // SAFETY: the range was mapped above. A refusal leaves small pages, which also work.
            unsafe { libc::madvise(p, len, libc::MADV_HUGEPAGE) };
        }
        // A forked child must not share, and by copy-on-write move, pages the kernel fills.
        // SAFETY: the range was mapped above.
        unsafe { libc::madvise(p, len, libc::MADV_DONTFORK) };
        for at in (0..len).step_by(PAGE) {
            // SAFETY: `at` lies inside the mapping. Touching brings the page in after the
            // huge-page hint, which MAP_POPULATE would have missed.
            unsafe { ptr.add(at).write_volatile(0) };
        }
        Ok(Region { ptr, len })
    }

    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is our mapping.
        match unsafe { libc::mlock(self.ptr.as_ptr().cast(), self.len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.ptr.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its users hold a reference to the region.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

const ALIGN: usize = 64;
const SMALLEST: usize = 64;
const CLASSES: usize = 9; // 64 bytes to 16 KiB

/// Free blocks by size class: what operations and tasks live in. A block that was in use once is
/// reused, so a steady state allocates nothing.
#[derive(Default)]
pub(crate) struct BlockPool {
    free: [Vec<NonNull<u8>>; CLASSES],
}

fn class(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN {
        return None;
    }
    let size = layout.size().max(SMALLEST).next_power_of_two();
    let class = (size / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(SMALLEST << class, ALIGN).expect("a constant that fits")
}

impl BlockPool {
    pub(crate) fn take(&mut self, layout: Layout) -> NonNull<u8> {
        let layout = match class(layout) {
            Some(class) => match self.free[class].pop() {
                Some(block) => return block,
                None => class_layout(class),
            },
            None => layout,
        };
        // SAFETY: classes are at least 64 bytes; unclassed layouts are larger or over-aligned
        // and get a size below if they have none.
        let p = unsafe { alloc(nonzero(layout)) };
        NonNull::new(p).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// # Safety
    /// `block` came from `take` of a pool with the same layout, and its contents were dropped.
    pub(crate) unsafe fn give(&mut self, block: NonNull<u8>, layout: Layout) {
        match class(layout) {
            Some(class) => self.free[class].push(block),
            // SAFETY: `take` allocated it with this layout.
            None => unsafe { dealloc(block.as_ptr(), nonzero(layout)) },
        }
    }
}

fn nonzero(layout: Layout) -> Layout {
    if layout.size() == 0 {
        Layout::from_size_align(layout.align(), layout.align()).expect("an existing alignment")
    } else {
        layout
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        for (class, blocks) in self.free.iter_mut().enumerate() {
            for block in blocks.drain(..) {
                // SAFETY: blocks in a class list were allocated with the class's layout.
                unsafe { dealloc(block.as_ptr(), class_layout(class)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_reused_by_class() {
        let mut pool = BlockPool::default();
        let a = pool.take(Layout::new::<[u8; 100]>());
        // SAFETY: `a` came from this pool with this layout; u8 needs no drop.
        unsafe { pool.give(a, Layout::new::<[u8; 100]>()) };
        let b = pool.take(Layout::new::<[u64; 16]>());
        assert_eq!(a, b, "both are of the 128-byte class");
        let c = pool.take(Layout::new::<[u64; 17]>());
        assert_ne!(b, c);
        // SAFETY: as above.
        unsafe {
            pool.give(b, Layout::new::<[u64; 16]>());
            pool.give(c, Layout::new::<[u64; 17]>());
        }
    }

    #[test]
    fn odd_layouts_are_served() {
        #[repr(align(4096))]
        struct Aligned;
        let mut pool = BlockPool::default();
        for layout in [
            Layout::new::<()>(),
            Layout::new::<Aligned>(),
            Layout::new::<[u8; 16 << 10]>(),
            Layout::new::<[u8; (16 << 10) + 1]>(),
        ] {
            let p = pool.take(layout);
            assert_eq!(p.as_ptr() as usize % layout.align(), 0);
            // SAFETY: the block has at least the layout's size.
            unsafe { p.as_ptr().write_bytes(0x5a, layout.size()) };
            // SAFETY: taken from this pool with this layout.
            unsafe { pool.give(p, layout) };
        }
    }

    #[test]
    fn regions_are_zeroed_and_aligned() {
        let r = Region::new(3 * PAGE + 1, true).unwrap();
        assert_eq!(r.len, 4 * PAGE);
        assert_eq!(r.at(PAGE).as_ptr() as usize % PAGE, 0);
        // SAFETY: inside the region, initialised by the kernel.
        assert_eq!(unsafe { r.at(4 * PAGE - 1).read() }, 0);
    }
}
