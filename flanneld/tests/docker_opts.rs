//! Runs mk-docker-opts.sh with the system's sh and compares the output with Go flannel's output.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SAMPLE: &str = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n";

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/mk-docker-opts.sh")
}

struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    fn new(env: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("subnet.env"), env).unwrap();
        Self { folder }
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> (Output, String) {
        let out = self.folder.path().join("docker.env");
        let output = Command::new("sh")
            .arg(script())
            .args(["-f", "subnet.env", "-d"])
            .arg(&out)
            .args(args)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (output, std::fs::read_to_string(out).unwrap_or_default())
    }

    fn text(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let (output, text) = self.run(args, variables);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

const EACH: &str = "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"\nDOCKER_OPT_IPMASQ=\"--ip-masq=true\"\nDOCKER_OPT_MTU=\"--mtu=1472\"\n";
const ALL: &str = "\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n";

#[test]
fn docker_options_match_those_of_go_flannel() {
    let bed = Bed::new(SAMPLE);
    assert_eq!(bed.text(&[], &[]), format!("{EACH}DOCKER_OPTS={ALL}"));
    assert_eq!(bed.text(&["-i"], &[]), EACH);
    assert_eq!(bed.text(&["-c"], &[]), format!("DOCKER_OPTS={ALL}"));
    assert_eq!(bed.text(&["-i", "-c"], &[]), format!("{EACH}DOCKER_OPTS={ALL}"));
    assert_eq!(bed.text(&["-k", "CUSTOM_KEY"], &[]), format!("{EACH}CUSTOM_KEY={ALL}"));
    assert_eq!(
        bed.text(&["-m"], &[]),
        "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"\nDOCKER_OPT_MTU=\"--mtu=1472\"\nDOCKER_OPTS=\" --bip=10.1.74.1/24 --mtu=1472\"\n"
    );
}

#[test]
fn docker_masquerades_only_when_flannel_does_not() {
    assert!(Bed::new("FLANNEL_IPMASQ=true\n").text(&["-i"], &[]).contains("--ip-masq=false"));
    let (output, _) = Bed::new("FLANNEL_IPMASQ=maybe\n").run(&[], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("maybe"));
}

#[test]
fn existing_docker_options_are_kept() {
    let bed = Bed::new(SAMPLE);
    assert_eq!(
        bed.text(&["-c"], &[("DOCKER_OPTS", "--foo")]),
        "DOCKER_OPTS=\"--foo  --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n"
    );
    assert!(bed.text(&["-i"], &[("DOCKER_OPT_X", "--x")]).ends_with("DOCKER_OPT_X=\"--x\"\n"));
}

#[test]
fn missing_values_give_empty_docker_options() {
    assert_eq!(
        Bed::new("FLANNEL_IPV6_SUBNET=fd10:244:0:2d::1/64\n").text(&[], &[]),
        "DOCKER_OPTS=\"\"\n"
    );
    let bed = Bed::new("");
    std::fs::remove_file(bed.folder.path().join("subnet.env")).unwrap();
    assert_eq!(bed.text(&["-c"], &[]), "DOCKER_OPTS=\"\"\n");
}

#[test]
fn output_is_not_written_through_links_or_pipes() {
    let bed = Bed::new(SAMPLE);
    let (out, secret) = (bed.folder.path().join("docker.env"), bed.folder.path().join("secret"));
    std::fs::write(&secret, "mine").unwrap();
    std::os::unix::fs::symlink(&secret, &out).unwrap();
    let (output, _) = bed.run(&[], &[]);
    assert_eq!(
        (output.status.code(), std::fs::read_to_string(&secret).unwrap().as_str()),
        (Some(1), "mine")
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("symbolic link"));
    std::fs::remove_file(&out).unwrap();
    Command::new("mkfifo").arg(&out).status().unwrap();
    let done =
        Command::new("sh").arg(script()).args(["-f", "/none", "-d"]).arg(&out).output().unwrap();
    assert!(String::from_utf8_lossy(&done.stderr).contains("regular file"), "{done:?}");
    let done = Command::new("sh")
        .arg(script())
        .args(["-f", "/none", "-d", "/dev/stdout", "-c"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "DOCKER_OPTS=\"\"\n");
}

#[test]
fn wrong_arguments_print_the_usage() {
    let bed = Bed::new(SAMPLE);
    for args in [&["-h"][..], &["-?"], &["-z"], &["-k", "a-b"], &["-k", "x;id"]] {
        let (output, _) = bed.run(args, &[]);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn subnet_routed_to_a_gateway_is_an_error() {
    let bed = Bed::new(SAMPLE);
    let bin = bed.folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let fake = bin.join("ip");
    std::fs::write(&fake, "#!/bin/sh\n[ \"$*\" = '-4 route show exact 10.1.74.0/24' ] && echo '10.1.74.0/24 via 10.0.0.1 dev eth0'\n").unwrap();
    Command::new("chmod").arg("755").arg(&fake).status().unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let (output, text) = bed.run(&["-c"], &[("PATH", &path)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("via 10.0.0.1"));
    assert!(text.contains("--bip"), "the file is written already");
}
