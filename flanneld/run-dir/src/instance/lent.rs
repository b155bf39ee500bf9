//! UDP ports that a daemon uses as long as no tunnel on this host wants them: the kernel gives a tunnel no port that any socket has.

use super::names::{Denied, hold, named};
use super::peer::peer;
use super::sockets::{LENT, TAKEN, owner};
use std::io;
use std::os::unix::net::UnixListener;

/// Whoever uses a port in this way listens here: a connection says that a tunnel wants it. Ends with the listener, or with the process.
///
/// # Errors
/// The socket cannot be created.
pub fn borrow(port: u16) -> io::Result<UnixListener> {
    let name = format!("{LENT}{port}/{}", std::process::id());
    let listener = hold(
        &name,
        "which would have kept tunnels from asking for the port",
    )
    .map_err(|denied| match denied {
        Denied::Held(_) => io::ErrorKind::AddrInUse.into(),
        Denied::Host(why) => why,
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Tells those who use a port in this way that a tunnel wants it.
pub(super) fn ask_back(port: u16) {
    for name in named(
        &format!("{LENT}{port}/"),
        "which would have been asked for its port",
    ) {
        // Connecting is all there is to say.
        let _ = peer(name.raw.as_bytes());
    }
}

/// Describes the daemon in this network namespace whose tunnel has a UDP port, and its network.
pub fn tunnel_on(port: u16) -> Option<String> {
    named(
        &format!("{TAKEN}port/{port}/"),
        "which would have stopped probes",
    )
    .first()
    .map(|name| owner(name).to_string())
}
