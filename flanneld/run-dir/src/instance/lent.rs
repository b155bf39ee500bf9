//! UDP ports that a daemon uses as long as no tunnel on this host wants them: the kernel gives a tunnel no port that any socket has.

use super::sockets::{LENT, TAKEN, named, owner, peer};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Whoever uses a port in this way listens here: a connection says that a tunnel wants it. Ends with the listener, or with the process.
///
/// # Errors
/// The socket cannot be created.
pub fn borrow(port: u16) -> io::Result<UnixListener> {
    let name = format!("{LENT}{port}/{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Tells those who use a port in this way that a tunnel wants it.
pub(super) fn ask_back(port: u16) {
    for name in named(&format!("{LENT}{port}/")) {
        // Connecting is all there is to say.
        let _ = peer(name.as_bytes());
    }
}

/// Describes the daemon in this network namespace whose tunnel has a UDP port, and its network.
pub fn tunnel_on(port: u16) -> Option<String> {
    named(&format!("{TAKEN}port/{port}/")).first().map(|name| owner(name.as_bytes()))
}
