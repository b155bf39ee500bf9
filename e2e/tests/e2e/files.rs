//! Tests of the programs with unusual files: pipes without a reader, links in place of files, and unreadable or unwritable files.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use lab::{
    FlanneldOptions, Lab, Launch, Mesh, ProbeOptions, Store, binaries, code_or_text, stderr,
    stdout, throughout, until, write_script,
};
use nix::fcntl::OFlag;

const NET_CONF: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"vxlan"}}"#;

#[test]
fn daemon_survives_a_log_without_reader() {
    Lab::run("unread", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(NET_CONF)?;
        let (pipe, wrapper) = (
            lab.folder("")?.join("stderr"),
            lab.folder("")?.join("flanneld"),
        );
        ensure!(
            Command::new("mkfifo").arg(&pipe).status()?.success(),
            "mkfifo"
        );
        let own = binaries::own("flanneld")?;
        write_script(
            &wrapper,
            &format!(
                "#!/bin/sh\nexec 2>{}\nexec {} \"$@\"\n",
                pipe.display(),
                own.display()
            ),
        )?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");

        let read = std::thread::spawn({
            let pipe = pipe.clone();
            // Reads the first lines and closes the pipe.
            move || File::open(pipe).and_then(|mut pipe| pipe.read(&mut [0; 64]))
        });
        let mut unread = hosts[0].start_flanneld(&options.clone().binary(&wrapper))?;
        ensure!(
            read.join()
                .is_ok_and(|read| read.is_ok_and(|count| count > 0)),
            "nothing was logged at all"
        );
        until("ready, with nobody to tell", || {
            unread.get("/readyz").is_ok_and(|(code, _)| code == 200)
        })?;
        let other = hosts[1].flanneld(&options)?;
        let pods = [
            hosts[0].pod("p1", &unread.subnet_env()?)?,
            hosts[1].pod("p1", &other.subnet_env()?)?,
        ];
        let probes = ProbeOptions::default();
        Mesh::start(&pods, &probes)?.wait_flowing()?;
        let mesh = Mesh::start(&pods, &probes)?;
        mesh.wait_flowing()?;

        let dropped = || {
            unread
                .metric("flannel_log_lines_dropped_total")
                .unwrap_or_default()
        };
        let before = dropped();
        fs::write(leases.join("subnets/10.5.77.0-24"), "{")?;
        until("a line was dropped, and counted", || dropped() > before)?;
        ensure!(
            unread.get("/healthz")?.0 == 200,
            "unhealthy: {:?}",
            unread.get("/healthz")
        );

        // A new reader learns that lines are missing. Opening the pipe again does not make another pipe.
        let mut again = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&pipe)
            .context("reading again")?;
        fs::write(leases.join("subnets/10.5.78.0-24"), "{")?;
        let mut text = Vec::new();
        until("a new reader learns what is missing", || {
            // Reads until the pipe is empty.
            let _ = again.read_to_end(&mut text);
            String::from_utf8_lossy(&text)
                .contains("lost log lines, because flanneld could not write them")
        })?;
        ensure!(unread.is_running(), "it ended");
        mesh.require_clean()
    })
    .unwrap();
}

#[test]
fn flannelctl_succeeds_without_a_reader() {
    let folder = tempdir();
    let store = Store::dir(&folder.0);
    store.configure(NET_CONF).unwrap();
    fs::write(
        folder.0.join("subnets/10.5.1.0-24"),
        r#"{"PublicIP":"192.168.56.1","PublicIPv6":null}"#,
    )
    .unwrap();
    let run = |redirect: &str| {
        let flannelctl = binaries::own("flannelctl").unwrap();
        let program = format!(
            "{} leases --subnet-dir={}",
            flannelctl.display(),
            folder.0.display()
        );
        // The reader must have ended before the program writes.
        let script = format!(
            "exec 3>&1; {{ while [ -e {0}/wait ]; do :; done; {program}; echo \"status $?\" >&3; }} {redirect}",
            folder.0.display()
        );
        Command::new("bash").args(["-c", &script]).output().unwrap()
    };
    fs::write(folder.0.join("wait"), "").unwrap();
    let output = run(&format!("| rm {}/wait", folder.0.display()));
    assert_eq!(
        (stdout(&output).trim(), stderr(&output).as_str()),
        ("status 0", "")
    );
    // Output to a file that cannot be written is still an error.
    let output = run(">/dev/full");
    assert_eq!(stdout(&output).trim(), "status 1");
    assert!(
        stderr(&output).contains("No space left"),
        "{}",
        stderr(&output)
    );
}

struct Temporary(PathBuf);

fn tempdir() -> Temporary {
    let path = std::env::temp_dir().join(format!("flannel-files-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    Temporary(path)
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn unreadable_lease_is_named_without_its_content() {
    Lab::run("links", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(NET_CONF)?;
        let subnets = leases.join("subnets");
        symlink("/etc/passwd", subnets.join("10.5.7.0-24"))?;
        fs::write(subnets.join("10.5.8.0-24"), "root:x:0:0:secret")?;
        fs::write(subnets.join("10.5.9.0-24"), r#""root:x:0:0:secret""#)?;
        fs::write(subnets.join("10.5.10.0-24"), r#"{"PublicIP":"root:x:0:0:secret"}"#)?;
        fs::write(subnets.join("10.5.11.0-24"), r#"{"PublicIP":"192.168.56.211","BackendType":["secret"]}"#)?;
        fs::write(subnets.join("10.5.12.0-24"), r#"{"PublicIP":"192.168.56.212","BackendType":"vxlan","BackendData":{"VtepMAC":"secret"}}"#)?;
        fs::write(subnets.join("10.5.13.0-24"), r#"{"PublicIP":"192.168.56.213","BackendType":"vxlan","BackendData":"secret"}"#)?;
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))?;
        let log = daemon.log();
        for key in ["10.5.7.0", "10.5.8.0", "10.5.9.0", "10.5.10.0", "10.5.11.0", "10.5.12.0", "10.5.13.0"] {
            ensure!(log.lines().any(|line| line.contains("WARN") && line.contains(key)), "{key} is not named:\n{log}");
        }
        let (code, status) = daemon.get("/status")?;
        ensure!(code == 200 && !status.contains("root:") && !status.contains("secret"), "{status}");
        ensure!(!log.contains("root:") && !log.contains("secret"), "what is in the files is in the log:\n{log}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn symlinked_lock_is_refused_and_leftovers_are_removed() {
    Lab::run("lock", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NET_CONF)?;
        let file = host.subnet_file()?;
        let folder = file.parent().context("no folder")?;
        let secret = lab.folder("")?.join("secret");
        fs::write(&secret, "mine")?;
        let lock = folder.join(format!(
            ".{}.lock",
            file.file_name().unwrap_or_default().to_string_lossy()
        ));
        fs::create_dir_all(folder)?;
        symlink(&secret, &lock)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut refused = host.start_flanneld(&options)?;
        let status = refused.wait()?;
        ensure!(
            status.code() == Some(1)
                && refused
                    .log()
                    .contains(code_or_text("instance-claim", "symbolic link")),
            "{status}\n{}",
            refused.log()
        );
        ensure!(
            fs::read_to_string(&secret)? == "mine",
            "the link was followed"
        );
        fs::remove_file(&lock)?;

        let mut daemon = host.flanneld(&options)?;
        daemon.kill()?;
        let left = folder.join(format!(
            ".{}0123456789abcdef",
            file.file_name().unwrap_or_default().to_string_lossy()
        ));
        fs::write(&left, "FLANNEL_")?;
        let _daemon = host.flanneld(&options)?;
        ensure!(!left.exists(), "{} is still there", left.display());
        Ok(())
    })
    .unwrap();
}

#[test]
fn unwritable_subnet_env_is_reported_once() {
    Lab::run("full", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let store = lab.folder("leases")?;
        Store::dir(&store).configure(NET_CONF)?;
        // A folder in the file's place makes the write fail, as a full disk does.
        let file = lab.folder("folder/subnet.env")?;
        let launch = Launch::new(binaries::own("flanneld")?)
            .arg("--iface=enp0s8")
            .arg(format!("--subnet-dir={}", store.display()));
        let mut daemon = host.spawn(
            "full",
            &launch.arg(format!("--subnet-file={}", file.display())),
        )?;
        let count = |words: &str| daemon.log().matches(words).count();
        let unwritten = code_or_text("code=subnet-env-rename", "pods cannot start on this node");
        until("not ready, and why", || {
            count("not ready reason=") > 0 && count(unwritten) > 0
        })?;
        throughout(Duration::from_secs(1), "it is logged once", || {
            ensure!(count(unwritten) == 1, "{}", daemon.log());
            Ok(())
        })?;
        ensure!(daemon.is_running(), "it ended");
        Ok(())
    })
    .unwrap();
}
