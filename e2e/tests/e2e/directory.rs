//! Tests daemons whose lease directory becomes unavailable: unmounted, moved, replaced or hung. Pods lose no packet, and the daemons report the outage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{
    Bed, Flanneld, FlanneldOptions, Hang, Host, Lab, Mesh, ProbeOptions, Store, code_or_text,
    succeeded, throughout, until,
};

const NET_CONF: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// Number of probes on each path during the outage.
const PROBES: u32 = 400;

/// Returns the duration of the outage. The default of 20 s is longer than the daemon needs to detect a removed lease (10 s) and to delay the removal (5 s).
fn outage() -> Duration {
    Duration::from_secs(lab::env_number("FLANNEL_TEST_OUTAGE", 5))
}

/// Two hosts with daemons and probes between their pods.
struct Cluster {
    hosts: Vec<Host>,
    daemons: Vec<Flanneld>,
    options: FlanneldOptions,
    /// Folder that contains the leases.
    real: PathBuf,
    /// Path at which the daemons read the leases: `real`, or a mount point for `real`.
    place: PathBuf,
    mesh: Option<Mesh>,
}

impl Cluster {
    fn start(lab: &Lab, mounted: bool) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let real = lab.folder("leases")?;
        Store::dir(&real).configure(NET_CONF)?;
        let place = if mounted {
            lab.folder("mount")?
        } else {
            real.clone()
        };
        let options = FlanneldOptions::new(&Store::dir(&place))
            .iface("enp0s8")
            .arg("--audit-interval=0");
        let daemons = hosts
            .iter()
            .map(|host| host.start_flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        let mut cluster = Cluster {
            hosts,
            daemons,
            options,
            real,
            place,
            mesh: None,
        };
        if mounted {
            cluster.mount()?;
        }
        cluster.ready()?;
        let pods = Bed::pods(&cluster.hosts, &cluster.daemons)?;
        let options = ProbeOptions::default().interval(outage() / PROBES);
        Mesh::start(&pods, &options)?.wait_flowing()?;
        let mesh = Mesh::start(&pods, &options)?;
        mesh.wait_flowing()?;
        cluster.mesh = Some(mesh);
        Ok(cluster)
    }

    fn ready(&mut self) -> Result<()> {
        self.daemons
            .iter_mut()
            .try_for_each(|daemon| daemon.wait_ready().map(drop))
    }

    /// Runs a script in each daemon's mount namespace, so that no mount remains in the test's own namespace.
    fn in_each(&self, script: &str) -> Result<()> {
        for daemon in &self.daemons {
            let pid = daemon.pid().to_string();
            let done = Command::new("nsenter")
                .args(["-t", &pid, "-m", "sh", "-ec", script])
                .output()?;
            succeeded(script, &done)?;
        }
        Ok(())
    }

    fn mount(&self) -> Result<()> {
        self.in_each(&format!(
            "mount --bind {} {}",
            self.real.display(),
            self.place.display()
        ))
    }

    /// Checks that all daemons run during the outage, are healthy and not ready, and report the cause.
    fn endure(&mut self, why: &str) -> Result<()> {
        let begun = Instant::now();
        for daemon in &self.daemons {
            until(&format!("not ready, because of {why:?}"), || {
                daemon
                    .get("/readyz")
                    .is_ok_and(|(code, body)| code == 503 && body.contains(why))
            })?;
        }
        throughout(
            outage().saturating_sub(begun.elapsed()),
            "daemons live without their store",
            || {
                for daemon in &mut self.daemons {
                    ensure!(
                        daemon.is_running(),
                        "a daemon ended:\n{}",
                        daemon.log_tail(20)
                    );
                    ensure!(
                        daemon.get("/healthz")?.0 == 200,
                        "unhealthy: {:?}",
                        daemon.get("/healthz")
                    );
                    ensure!(
                        daemon.get("/readyz")?.0 == 503,
                        "ready again without its store"
                    );
                }
                Ok(())
            },
        )?;
        for daemon in &self.daemons {
            ensure!(
                daemon
                    .log()
                    .lines()
                    .filter(|line| line.contains("WARN") && line.contains(why))
                    .count()
                    <= 3,
                "logged again and again:\n{}",
                daemon.log()
            );
        }
        Ok(())
    }

    /// Checks that all daemons are ready again, that no probe was lost, and that the daemons repaired nothing.
    fn finish(mut self) -> Result<()> {
        self.ready()?;
        for (path, report) in self
            .mesh
            .take()
            .into_iter()
            .flat_map(|mesh| mesh.finish().unwrap())
        {
            println!(
                "{path}: {} of {} lost over {:?}",
                report.lost,
                report.sent,
                outage()
            );
            report.require_clean()?;
        }
        for daemon in &mut self.daemons {
            ensure!(
                daemon.is_running() && daemon.errors().is_empty(),
                "{:?}\n{}",
                daemon.errors(),
                daemon.log_tail(20)
            );
            ensure!(
                daemon.metric("flannel_kernel_repairs_total")? == 0.0,
                "something had to be repaired"
            );
        }
        Ok(())
    }
}

fn entries(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn moved_directory_loses_no_packet() {
    Lab::run("dir-moved", |lab| {
        let mut cluster = Cluster::start(lab, false)?;
        let aside = lab.folder("")?.join("aside");
        fs::rename(&cluster.place, &aside)?;
        cluster.endure(code_or_text("directory-missing", "does not exist"))?;
        ensure!(
            !cluster.place.exists(),
            "it was created again, with {:?}",
            entries(&cluster.place)
        );
        fs::rename(&aside, &cluster.place)?;
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn unmounted_directory_loses_no_packet() {
    Lab::run("dir-unmounted", |lab| {
        let mut cluster = Cluster::start(lab, true)?;
        cluster.in_each(&format!("umount -l {}", cluster.place.display()))?;
        cluster.endure(code_or_text(
            "directory-unmounted",
            "a directory without a config is in its place",
        ))?;
        ensure!(
            entries(&cluster.place).is_empty(),
            "below the bare mount point there is {:?}",
            entries(&cluster.place)
        );
        cluster.mount()?;
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn replaced_directory_needs_a_restart() {
    Lab::run("dir-replaced", |lab| {
        let mut cluster = Cluster::start(lab, false)?;
        let aside = lab.folder("")?.join("aside");
        let before = entries(&cluster.place.join("subnets")).len();
        fs::rename(&cluster.place, &aside)?;
        // A backup from yesterday: it has the configuration, and none of today's leases.
        Store::dir(&cluster.place).configure(NET_CONF)?;
        cluster.endure(code_or_text("directory-replaced", "restart flanneld"))?;
        ensure!(
            entries(&cluster.place.join("subnets")).is_empty(),
            "written to: {:?}",
            entries(&cluster.place.join("subnets"))
        );
        cluster
            .mesh
            .take()
            .into_iter()
            .try_for_each(Mesh::require_clean)?;
        for number in 0..2 {
            cluster.daemons[number].terminate()?;
            cluster.daemons[number] = cluster.hosts[number].start_flanneld(&cluster.options)?;
        }
        cluster.ready()?;
        ensure!(
            entries(&cluster.place.join("subnets")).len() == before,
            "the leases are not in the new directory"
        );
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn directory_without_configuration_is_treated_as_missing() {
    Lab::run("dir-config", |lab| {
        let mut cluster = Cluster::start(lab, false)?;
        let config = cluster.place.join("config");
        fs::rename(&config, cluster.place.join(".config"))?;
        cluster.endure("config")?;
        // No process writes into the pipe, so opening it for reading would block forever.
        nix_mkfifo(&config)?;
        cluster.endure("config")?;
        fs::rename(cluster.place.join(".config"), &config)?;
        cluster.finish()
    })
    .unwrap();
}

fn nix_mkfifo(path: &Path) -> Result<()> {
    let made = Command::new("mkfifo").arg(path).status()?;
    ensure!(made.success(), "mkfifo {}", path.display());
    Ok(())
}

#[test]
fn hanging_directory_blocks_nothing_else() {
    Lab::run("dir-hung", |lab| {
        let mut cluster = Cluster::start(lab, false)?;
        let threads = |daemon: &Flanneld| {
            entries(&PathBuf::from(format!("/proc/{}/task", daemon.pid()))).len()
        };
        let before: Vec<usize> = cluster.daemons.iter().map(threads).collect();
        let hang = Hang::of(&[&cluster.place, &cluster.place.join("subnets")])?;
        for daemon in &cluster.daemons {
            until("not ready, because the directory does not answer", || {
                daemon.get("/readyz").is_ok_and(|(code, body)| {
                    code == 503
                        && body.contains(code_or_text("directory-hangs", "does not respond"))
                })
            })?;
        }
        cluster.endure(code_or_text("directory-hangs", "does not respond"))?;
        // The reconciler still works.
        let route = || {
            cluster.hosts[0]
                .netns()
                .sh("ip route show proto 241")
                .unwrap_or_default()
        };
        let routes = route();
        ensure!(!routes.is_empty(), "there is no route");
        cluster
            .mesh
            .take()
            .into_iter()
            .try_for_each(Mesh::require_clean)?;
        cluster.hosts[0].netns().sh("ip route flush proto 241")?;
        until("the route is back", || route() == routes)?;
        for (daemon, before) in cluster.daemons.iter().zip(before) {
            let now = threads(daemon);
            ensure!(now <= before + 1, "threads pile up: {now} after {before}");
        }
        // A stop does not wait for the directory.
        let status = cluster.daemons[1].terminate()?;
        ensure!(status.code() == Some(0), "{status}");
        drop(hang);
        cluster.daemons[1] = cluster.hosts[1].start_flanneld(&cluster.options)?;
        cluster.ready()?;
        ensure!(
            cluster.daemons[0].errors().is_empty(),
            "{:?}",
            cluster.daemons[0].errors()
        );
        Ok(())
    })
    .unwrap();
}
