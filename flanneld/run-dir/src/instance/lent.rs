//! UDP ports that a daemon uses only until a tunnel on this host needs them. The kernel does not let a tunnel use a port that a socket already uses.

use super::names::{HoldError, hold, named};
use super::peer::peer;
use super::sockets::{LENT, TAKEN, owner};
use std::io;
use std::os::unix::net::UnixListener;

/// Announces that this daemon uses a port until a tunnel needs it. A process that connects to the listener requests
/// the port. The announcement ends when this daemon drops the listener or ends.
pub fn borrow(port: u16) -> io::Result<UnixListener> {
    let name = format!("{LENT}{port}/{}", std::process::id());
    let listener =
        hold(&name, "would have prevented tunnels from requesting the port").map_err(|denied| {
            match denied {
                HoldError::Held(_) => io::ErrorKind::AddrInUse.into(),
                HoldError::Host(why) => why,
            }
        })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Requests a port from the daemons that use it until a tunnel needs it.
pub(super) fn ask_back(port: u16) {
    for name in named(&format!("{LENT}{port}/"), "would have received the request for its port") {
        // The connection itself is the request.
        let _ = peer(name.raw.as_bytes());
    }
}

/// The daemon whose tunnel uses this UDP port in this network namespace, with its network.
pub fn tunnel_on(port: u16) -> Option<String> {
    named(&format!("{TAKEN}port/{port}/"), "would have stopped probes")
        .first()
        .map(|name| owner(name).to_string())
}
