//! Fresh randomness for the kernel's pool after a sleep.
//!
//! Two wakes of one image would otherwise draw the same numbers. A plain write to `/dev/urandom`
//! is mixed in only at the pool's next reseed, up to a minute later; the ioctl with a credit
//! and a forced reseed make it count at once.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

/// The most bytes taken from one message. The pool holds 256 bits.
pub const MAX: usize = 64;

/// `struct rand_pool_info` of `linux/random.h`, with the buffer in place.
#[repr(C)]
struct PoolInfo {
    /// How many bits of entropy to credit.
    entropy_count: nix::libc::c_int,
    /// How many bytes of `buffer` count.
    buffer_size: nix::libc::c_int,
    buffer: [u8; MAX],
}

mod ioctl {
    use nix::libc::c_int;

    // RNDADDENTROPY is declared in linux/random.h over `int[2]`, the head of the struct.
    nix::ioctl_write_ptr_bad!(
        add_entropy,
        nix::request_code_write!(b'R', 0x03, size_of::<[c_int; 2]>()),
        super::PoolInfo
    );
    // RNDRESEEDCRNG.
    nix::ioctl_none_bad!(reseed, nix::request_code_none!(b'R', 0x07));
}

/// Mixes `fresh` (up to [`MAX`] bytes of it) into the kernel's pool, credits it in full, and has
/// the generator reseed from it. Needs `CAP_SYS_ADMIN`.
pub fn mix(fresh: &[u8]) -> io::Result<()> {
    let fresh = &fresh[..fresh.len().min(MAX)];
    let mut info = PoolInfo { entropy_count: 0, buffer_size: 0, buffer: [0; MAX] };
    info.buffer[..fresh.len()].copy_from_slice(fresh);
    // At most MAX, so it fits.
    info.buffer_size = fresh.len() as nix::libc::c_int;
    info.entropy_count = info.buffer_size * 8;

    let device = OpenOptions::new().write(true).open("/dev/urandom")?;
    // SAFETY: `device` is open for the whole call, and `info` is a live `rand_pool_info` whose
    // `buffer_size` is within its buffer. The kernel only reads it.
    unsafe { ioctl::add_entropy(device.as_raw_fd(), &raw const info) }?;
    // SAFETY: `device` is open for the whole call, and the request takes no argument.
    unsafe { ioctl::reseed(device.as_raw_fd()) }?;
    Ok(())
}
