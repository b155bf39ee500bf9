//! Tests that a node with userspace WireGuard sends no packet of a pod in the clear.

use anyhow::{Result, ensure};
use lab::{Capture, Scene, until_ok};
use nix::sys::signal::Signal;

use crate::datapath::engines::WIREGUARD;
use crate::wireguard::keys::{
    Keys, daemon_key_path_with_folder, published_public_key, replace_file_atomically,
};

/// A node restarts, and gets another key. Before each new session starts, no packet leaves unencrypted.
#[test]
fn restarted_node_sends_nothing_in_the_clear() -> Result<()> {
    Scene::with_title("wireguard restart").net(&WIREGUARD.dual_stack_net_conf()).run(|s| {
        let capture = Capture::start(s.lan.netns())?;
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        s[1].kill_daemon()?;
        s[1].start_daemon()?;
        s.wait_first_pods_connected()?;
        let keys = Keys::new();
        replace_file_atomically(&daemon_key_path_with_folder(&s[1])?, &keys.private_text())?;
        s[1].daemon()?.signal(Signal::SIGHUP)?;
        until_ok("the lease has the new key", || {
            let now = published_public_key(&s.store, &s[1])?;
            ensure!(now == keys.public_text(), "{now}");
            Ok(())
        })?;
        s.wait_first_pods_connected()?;
        mesh.finish()?;
        let mut initiations = 0;
        for frame in capture.finish()? {
            let is_clear = match frame.get(12..14) {
                Some([8, 0]) => frame.get(26..28) == Some(&[10, 5]),
                Some([0x86, 0xdd]) => frame.get(22..26) == Some(&[0xfd, 0, 0, 5]),
                _ => false,
            };
            ensure!(!is_clear, "a packet of a pod in the clear: {frame:02x?}");
            let is_initiation = frame.len() == 14 + 20 + 8 + 148;
            initiations +=
                usize::from(is_initiation && frame.get(36..38) == Some(&51820_u16.to_be_bytes()));
        }
        ensure!(initiations > 0, "no handshake was seen");
        s.require_no_errors()
    })
}
