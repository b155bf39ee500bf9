//! The processes of this PID namespace and their open sockets, from /proc.

use std::path::PathBuf;

/// Returns the ids of all processes in this PID namespace.
pub fn pids() -> impl Iterator<Item = i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
}

/// Returns the open sockets of a process, each with its inode and its path in /proc/PID/fd. The result is empty if
/// the caller has no permission to read the sockets.
pub fn sockets(pid: i32) -> impl Iterator<Item = (u64, PathBuf)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    files.map(|file| file.path()).filter_map(|path| {
        let target = std::fs::read_link(&path).ok()?;
        let inode = target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?
            .parse::<u64>()
            .ok()?;
        Some((inode, path))
    })
}
