//! Capture of all frames on the interfaces of a namespace.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal};

use crate::net::netns::Netns;

/// How often the capturing thread checks whether to end.
const POLL_INTERVAL_MS: i64 = 20;
/// The capture waits this long for frames in flight before it ends.
const GRACE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
pub struct Frame {
    /// Wall-clock time at which the kernel saw the frame.
    pub at: SystemTime,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// All frames on all interfaces of a namespace.
#[derive(Debug)]
pub struct Capture {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Frame>>>,
}

impl Capture {
    /// All frames from now on.
    pub fn start(netns: &Netns) -> Result<Capture> {
        let open = || -> nix::Result<OwnedFd> {
            let fd = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )?;
            setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(0, POLL_INTERVAL_MS * 1000))?;
            setsockopt(&fd, sockopt::RcvBufForce, &(32 << 20))?;
            setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
            Ok(fd)
        };
        let fd = netns
            .run(open)?
            .with_context(|| format!("cannot open a packet socket in {}", netns.name()))?;
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let mut frames = Vec::new();
            let mut buffer = vec![0; 1 << 17];
            loop {
                match receive_frame(&fd, &mut buffer) {
                    Ok((length, at)) => frames.push(Frame {
                        at,
                        bytes: buffer.get(..length).unwrap_or_default().to_vec(),
                    }),
                    Err(_) if ends.load(Ordering::Relaxed) => return frames,
                    Err(_) => {}
                }
            }
        });
        Ok(Capture { end, thread: Some(thread) })
    }

    /// Waits for frames in flight.
    pub fn finish(self) -> Result<Vec<Vec<u8>>> {
        Ok(self.finish_timed()?.into_iter().map(|frame| frame.bytes).collect())
    }

    /// Waits for frames in flight. Each frame has its arrival time.
    pub fn finish_timed(mut self) -> Result<Vec<Frame>> {
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

/// The result is the frame's length and its time.
fn receive_frame(fd: &OwnedFd, buffer: &mut [u8]) -> nix::Result<(usize, SystemTime)> {
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(fd.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())?;
    let stamp = message.cmsgs()?.find_map(|part| {
        if let ControlMessageOwned::ScmTimestampns(at) = part {
            Some(Duration::from(at))
        } else {
            None
        }
    });
    Ok((message.bytes, stamp.map_or_else(SystemTime::now, |at| SystemTime::UNIX_EPOCH + at)))
}

/// The bytes may be at any offset.
pub fn frame_contains_bytes(frame: &[u8], bytes: &[u8]) -> bool {
    frame.windows(bytes.len().max(1)).any(|window| window == bytes)
}
