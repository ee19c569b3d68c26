//! What this program has allocated and not freed yet. The memory that the kernel counts has the program's code in it, too, and the holes between
//! allocations: it can grow while nothing is kept.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Bytes, and in how many allocations.
pub(crate) fn live() -> [u64; 2] {
    [&BYTES, &ALLOCATIONS].map(|number| number.load(Ordering::Relaxed))
}

fn added(layout: Layout) {
    BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

fn removed(layout: Layout) {
    BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
    ALLOCATIONS.fetch_sub(1, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator as it came. (The other methods are made of these two.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        added(layout);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        removed(layout);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
