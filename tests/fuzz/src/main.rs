//! The fuzzer: the variable `FUZZ` names the target, and the rest is libFuzzer's command line. `./run` calls it.

#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libfuzzer_sys::fuzz_target;
use redlock_sync::fuzz::{PER_BYTE, TARGETS, Target};

/// Counts what is allocated at a time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn more(size: usize) {
    MOST.fetch_max(NOW.fetch_add(size, Relaxed) + size, Relaxed);
}

// SAFETY: all calls are passed on, with what they were given.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn target() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("FUZZ={name:?} is no target: {}", names.join(" "));
            std::process::exit(2);
        })
    })
}

fuzz_target!(|data: &[u8]| {
    let target = target();
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    (target.run)(data);
    let most = MOST.load(Relaxed).saturating_sub(before);
    let allowed = target.base + PER_BYTE * data.len();
    assert!(most <= allowed, "{most} bytes were allocated for {} received", data.len());
});
