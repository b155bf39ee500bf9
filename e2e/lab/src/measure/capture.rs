//! What passes the interfaces of a namespace, byte by byte.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;

use crate::net::netns::Netns;

/// How often the thread looks whether it should end.
const GLANCE_MS: i64 = 20;
/// How long frames may be under way after the last one was sent.
const GRACE: Duration = Duration::from_millis(200);

/// A running capture of all frames on all interfaces of a namespace.
#[derive(Debug)]
pub struct Capture {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Vec<u8>>>>,
}

impl Capture {
    /// Starts it; frames that come from now on are in it.
    ///
    /// # Errors
    /// When the namespace gives no packet socket.
    pub fn start(netns: &Netns) -> Result<Capture> {
        let open = || -> nix::Result<OwnedFd> {
            let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
            setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(0, GLANCE_MS * 1000))?;
            setsockopt(&fd, sockopt::RcvBufForce, &(32 << 20))?;
            Ok(fd)
        };
        let fd = netns.run(open)?.with_context(|| format!("a packet socket in {}", netns.name()))?;
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let mut frames = Vec::new();
            let mut buffer = vec![0; 1 << 17];
            loop {
                match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    Ok(length) => frames.push(buffer.get(..length).unwrap_or_default().to_vec()),
                    Err(_) if ends.load(Ordering::Relaxed) => return frames,
                    Err(_) => {}
                }
            }
        });
        Ok(Capture { end, thread: Some(thread) })
    }

    /// Waits a moment for what is under way, and hands out all frames.
    ///
    /// # Errors
    /// When its thread panicked.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        std::thread::sleep(GRACE);
        self.end.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a capture ends once")?;
        thread.join().map_err(|_| anyhow!("the capturing thread panicked"))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Whether a frame holds these bytes anywhere.
pub fn holds(frame: &[u8], bytes: &[u8]) -> bool {
    frame.windows(bytes.len().max(1)).any(|window| window == bytes)
}
