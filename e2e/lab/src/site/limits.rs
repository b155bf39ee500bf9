//! Kernel limits of the whole machine that large labs exceed.

/// Raises a kernel limit to `wanted` if it is lower, and prints the change, which outlasts the lab. If this process cannot raise it, programs that
/// exceed the limit report an error. `file` is a path below `/proc/sys`.
pub fn raise_kernel_limit(file: &str, wanted: u32, reason: &str) {
    let path = format!("/proc/sys/{file}");
    let now = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    if now.is_some_and(|now| now < wanted) && std::fs::write(&path, wanted.to_string()).is_ok() {
        eprintln!("raised {} of this machine to {wanted}: {reason}", file.replace('/', "."));
    }
}
