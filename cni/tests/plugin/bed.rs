//! The environment in which tests run the plugin: a folder with a subnet.env, a data directory and a stub of
//! the delegate.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// `FLANNEL_TEST_CNI` may set another command line, which may begin with an emulator.
pub(crate) fn plugin() -> String {
    std::env::var("FLANNEL_TEST_CNI").unwrap_or_else(|_| env!("CARGO_BIN_EXE_flannel").to_owned())
}

/// As flanneld may write it.
pub(crate) const SUBNET_ENV: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// A stub of the delegate. It records each call and its input. For each attachment it keeps a file in `held`,
/// as bridge and host-local keep an interface and an address. Files control it: `fail-VERB` contains an error
/// that it prints at once, `fail-late-VERB` one that it prints after its work. `slow` contains the duration
/// of a call in seconds.
const STUB: &str = r#"#!/bin/sh
cd "$STUB" || exit 1
echo "$CNI_COMMAND ${0##*/}" >> calls
cat > "delegate-$CNI_COMMAND"
fail() { if [ -e "$1" ]; then cat "$1"; exit 1; fi; }
fail "fail-$CNI_COMMAND"
held="held/$CNI_CONTAINERID,$CNI_IFNAME"
case $CNI_COMMAND in
ADD) if [ -e "$held" ]; then echo '{"code":999,"msg":"duplicate"}'; exit 1; fi; : > "$held" ;;
DEL) rm -f "$held" ;;
esac
[ -e slow ] && sleep "$(cat slow)"
fail "fail-late-$CNI_COMMAND"
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"0.3.1","dns":{}}'
exit 0
"#;

pub(crate) struct Bed {
    folder: TempDir,
    /// A command line.
    plugin: String,
}

/// The exit code and the output of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self {
            exit: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// The JSON error that the plugin printed. Panics if the call succeeded.
    pub(crate) fn error(&self) -> Value {
        assert_eq!(self.exit, 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// 0 if the call succeeded.
    pub(crate) fn code(&self) -> u64 {
        if self.exit == 0 { 0 } else { self.error()["code"].as_u64().unwrap() }
    }

    /// Panics if the call failed or printed text on standard error.
    pub(crate) fn ok(self) -> Self {
        assert!(self.exit == 0 && self.stderr.is_empty(), "{self:?}");
        self
    }
}

impl Bed {
    /// Has a subnet.env and a stub of the delegate under each of these names.
    pub(crate) fn new(stubs: &[&str]) -> Self {
        Self::of(plugin(), stubs)
    }

    /// For the plugin with this command line.
    pub(crate) fn of(plugin: String, stubs: &[&str]) -> Self {
        let bed = Self { folder: tempfile::tempdir().unwrap(), plugin };
        for folder in ["bin", "stub/held"] {
            fs::create_dir_all(bed.path(folder)).unwrap();
        }
        for stub in stubs {
            let path = bed.path("bin").join(stub);
            fs::write(&path, STUB).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(bed.path("subnet.env"), SUBNET_ENV).unwrap();
        bed
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The default network configuration of the tests, with additional keys.
    pub(crate) fn conf(&self, more: &Value) -> String {
        let mut conf = json!({"name": "cbr0", "cniVersion": "1.1.0", "type": "flannel", "subnetFile": self.path("subnet.env"), "dataDir": self.path("data")});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf.to_string()
    }

    /// `through` is a command that runs the plugin, or empty.
    pub(crate) fn start(&self, through: &[&str], variables: &[(&str, &str)], conf: &str) -> Child {
        let words: Vec<&str> =
            through.iter().copied().chain(self.plugin.split_whitespace()).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("STUB", self.path("stub"))
            .env("CNI_PATH", self.path("bin"));
        command.envs(variables.iter().copied());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A plugin that fails early does not read its standard input.
        let _ = child.stdin.take().unwrap().write_all(conf.as_bytes());
        child
    }

    /// Does not wait for the end of the plugin.
    pub(crate) fn start_for(
        &self,
        verb: &str,
        container: &str,
        interface: &str,
        conf: &str,
    ) -> Child {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", interface),
            ("CNI_NETNS", "/run/netns/nowhere"),
        ];
        self.start(&[], &variables, conf)
    }

    /// Runs the plugin for an interface of a container.
    pub(crate) fn call_for(
        &self,
        verb: &str,
        container: &str,
        interface: &str,
        conf: &str,
    ) -> Answer {
        Answer::of(self.start_for(verb, container, interface, conf).wait_with_output().unwrap())
    }

    /// Runs the plugin for `eth0` of the container `c0ffee`, with the default configuration.
    pub(crate) fn call(&self, verb: &str) -> Answer {
        self.call_for(verb, "c0ffee", "eth0", &self.conf(&json!({})))
    }

    /// The valid attachments are `eth0` of these containers.
    pub(crate) fn gc(&self, valid: &[&str]) -> Answer {
        let list: Value =
            valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        self.call_for("GC", "", "", &self.conf(&json!({"cni.dev/valid-attachments": list})))
    }

    /// Runs the plugin through another command, such as `unshare`, for `eth0` of the container `c0ffee`.
    pub(crate) fn call_through(&self, through: &[&str], verb: &str) -> Answer {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/nowhere"),
        ];
        Answer::of(
            self.start(through, &variables, &self.conf(&json!({}))).wait_with_output().unwrap(),
        )
    }

    /// Makes the stub of the delegate fail with this error.
    pub(crate) fn fail(&self, when: &str, error: &str) {
        fs::write(self.path("stub").join(format!("fail-{when}")), error).unwrap();
    }

    /// Makes it succeed again.
    pub(crate) fn heal(&self, when: &str) {
        fs::remove_file(self.path("stub").join(format!("fail-{when}"))).unwrap();
    }

    /// The verb and the program name of each call of the delegate.
    pub(crate) fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.path("stub/calls"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The configuration that the delegate last received with a verb.
    pub(crate) fn received(&self, verb: &str) -> Option<String> {
        fs::read_to_string(self.path("stub").join(format!("delegate-{verb}"))).ok()
    }

    /// The attachments for which the stub keeps a file.
    pub(crate) fn held(&self) -> Vec<String> {
        names(&self.path("stub/held"))
    }

    /// The name and the text of each file in the data directory.
    pub(crate) fn data(&self) -> BTreeMap<String, String> {
        let folder = self.path("data");
        names(&folder)
            .into_iter()
            .map(|name| (name.clone(), fs::read_to_string(folder.join(name)).unwrap()))
            .collect()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
