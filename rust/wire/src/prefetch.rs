//! A hint to the processor, and no more: results never depend on it.

/// Asks for the cache line at `place`, which will be needed soon.
#[inline(always)]
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "a prefetch reads nothing and cannot fault"))]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address comes from a reference, and prefetching any address is allowed.
        unsafe { _mm_prefetch(std::ptr::from_ref(place).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
