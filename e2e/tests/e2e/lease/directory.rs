//! Daemons whose lease directory is moved, hidden, replaced or hangs: pods lose no packet, and the daemons report the outage.

use std::process::Command;

use anyhow::{Result, ensure};
use lab::{Hang, Scene, require_success, until_ok};

use crate::healing::scenarios;

/// Runs in the folder above the leases, in the mount namespaces of the first `daemons` daemons.
fn run_in_daemon_mount_namespaces(s: &Scene<'_>, daemons: usize, script: &str) -> Result<()> {
    for node in &s.nodes[..daemons] {
        let pid = node.daemon()?.pid().to_string();
        let script = format!("cd {}; {script}", s.lab.ensure_folder("")?.display());
        let done =
            Command::new("nsenter").args(["-t", &pid, "-m", "sh", "-ec", &script]).output()?;
        require_success(&script, &done)?;
    }
    Ok(())
}

/// The daemons are not ready because of `why`, but alive.
fn wait_unready_but_alive(s: &mut Scene<'_>, why: &str) -> Result<()> {
    s.check_each_node(|node| {
        until_ok("the daemon is not ready", || {
            let (code, body) = node.get_health_endpoint("/readyz")?;
            ensure!(code == 503 && body.contains(why), "{code} {body}");
            Ok(())
        })?;
        let (code, body) = node.get_health_endpoint("/healthz")?;
        ensure!(code == 200, "{code} {body}");
        Ok(())
    })
}

scenarios! { directory_comes_back_without_loss;
    moved_directory_loses_no_packet =>
        (1, "mv leases aside", "does not exist", "! test -e leases; mv aside leases"),
    // The directory below a mount point.
    unmounted_directory_loses_no_packet =>
        (2, "mount -t tmpfs none leases", "without a config", "test -z \"$(ls -A leases)\"; umount leases"),
    // Opening the pipe for reading would block for ever, because nobody writes into it.
    directory_without_configuration_is_treated_as_missing =>
        (1, "mv leases/config aside; mkfifo leases/config", "config", "mv aside leases/config"),
}

/// A row has the number of daemons in whose mount namespace the scripts run, the script that takes the directory away, the reason that the daemons
/// report, and the script that checks that nothing was written and brings the directory back.
fn directory_comes_back_without_loss(
    (daemons, away, why, back): (usize, &str, &str, &str),
) -> Result<()> {
    Scene::with_title("directory").run(|s| {
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        run_in_daemon_mount_namespaces(s, daemons, away)?;
        wait_unready_but_alive(s, why)?;
        run_in_daemon_mount_namespaces(s, daemons, back)?;
        s.start_daemons()?;
        s.check_each_node(|node| {
            until_ok("the daemon is ready again", || node.require_ready())?;
            node.wait_metric_value("flannel_kernel_repairs_total", 0.0)
        })?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}

#[test]
fn replaced_directory_needs_a_restart() -> Result<()> {
    Scene::with_title("replaced").run(|s| {
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        // A backup from yesterday: it has the configuration, and none of today's leases.
        run_in_daemon_mount_namespaces(
            s,
            1,
            "cp -a leases old; rm old/subnets/*; mv leases aside; mv old leases",
        )?;
        wait_unready_but_alive(s, "restart flanneld")?;
        ensure!(
            s.store.lease_names_and_values()?.is_empty(),
            "{:?}",
            s.store.lease_names_and_values()?
        );
        mesh.finish_and_require_clean()?;
        for node in &mut s.nodes {
            node.stop_daemon()?;
        }
        s.start_daemons()?;
        ensure!(
            s.store.lease_names_and_values()?.len() == 2,
            "{:?}",
            s.store.lease_names_and_values()?
        );
        s.wait_first_pods_connected()
    })
}

#[test]
fn hanging_directory_blocks_nothing_else() -> Result<()> {
    Scene::with_title("hung").run(|s| {
        let leases = s.lab.ensure_folder("leases")?;
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        let hang = Hang::block_opens_in_folders(&[&leases, &leases.join("subnets")])?;
        wait_unready_but_alive(s, "does not respond")?;
        mesh.finish_and_require_clean()?;
        // The reconciler still works.
        s[0].sh("ip route flush dev flannel.1 proto 241")?;
        s[0].wait_output_contains("ip route show dev flannel.1", "via")?;
        // A stop does not wait for the directory.
        s[1].stop_daemon()?;
        drop(hang);
        s.start_daemons()?;
        s.require_no_errors()
    })
}
