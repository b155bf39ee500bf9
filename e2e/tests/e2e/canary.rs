//! A canary in every secret: none of them sings in a log, an answer, a file for others, what flannelctl prints, or a support bundle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    ApiServer, Etcd, EtcdOptions, Families, Flanneld, FlanneldOptions, Host, Lab, Launch,
    NodeObject, Store, Uplink, User, binaries, eventually,
};

use crate::kube::turn;

const SOON: Duration = Duration::from_secs(60);
const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// A word that nothing else contains.
const CANARY: &str = "c4n4ry-0d9e8f7a6b";

/// A host on which secrets are in use, with its own /etc/default.
struct Cage {
    host: Host,
    folder: PathBuf,
    subnet_file: PathBuf,
    scripts: u32,
}

impl Cage {
    fn new(lab: &Lab, host: &Host) -> Result<Cage> {
        let folder = lab.folder(&format!("{}-cage", host.name()))?;
        std::fs::create_dir_all(folder.join("default"))?;
        Ok(Cage {
            host: host.clone(),
            subnet_file: host.subnet_file()?,
            folder,
            scripts: 0,
        })
    }

    /// Runs a script with the host's own /etc/default, whatever its exit code.
    fn sh(&mut self, script: &str) -> Result<String> {
        self.scripts += 1;
        let mount = format!(
            "mkdir -p /etc/default; mount --bind '{}' /etc/default",
            self.folder.join("default").display()
        );
        let launch = Launch::new("sh").args(["-c", &format!("{mount}\n{script}")]);
        let mut process = self
            .host
            .spawn(&format!("cage-{}", self.scripts), &launch)?;
        process.wait(SOON)?;
        Ok(process.log())
    }

    /// Fails when one of the secrets is anywhere. The daemon runs, or has ended; `store` is what flannelctl is told of the store.
    fn is_silent(
        &mut self,
        what: &str,
        daemon: &Flanneld,
        store: &[String],
        secrets: &[String],
    ) -> Result<()> {
        ensure!(
            !secrets.is_empty() && secrets.iter().all(|secret| secret.len() > 8),
            "{what}: {secrets:?}"
        );
        let mut told = vec![("log", daemon.log())];
        for path in ["/livez", "/readyz", "/metrics", "/status"] {
            told.extend(daemon.get(path).ok().map(|(_, text)| (path, text)));
        }
        for path in ["/api/v1/node", "/api/v1/node?rows", "/api/v1/findings"] {
            told.extend(daemon.api(path).ok().map(|(_, text)| (path, text)));
        }
        let program = binaries::own("flannelctl")?;
        let file = format!("--subnet-file={}", self.subnet_file.display());
        for words in [
            "status",
            "status -o json",
            "peers",
            "peers -o json",
            "doctor --all",
            "doctor -o json",
        ] {
            told.push((
                words,
                self.sh(&format!("'{}' {words} '{file}'", program.display()))?,
            ));
        }
        let store = store
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ");
        told.push((
            "leases",
            self.sh(&format!("'{}' leases --long {store}", program.display()))?,
        ));
        let bundle = self.folder.join(format!("b{}.tar.gz", self.scripts));
        let made = self.sh(&format!(
            "'{}' support-bundle '{file}' --file '{}'",
            program.display(),
            bundle.display()
        ))?;
        ensure!(bundle.exists(), "{made}");
        told.push((
            "bundle",
            self.sh(&format!("tar -xzOf '{}'", bundle.display()))?,
        ));
        let beside = self.subnet_file.parent().context("a folder")?;
        let files = std::fs::read_dir(beside)?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        told.extend(files.map(|entry| {
            (
                "a file beside subnet.env",
                std::fs::read_to_string(entry.path()).unwrap_or_default(),
            )
        }));
        for (place, text) in &told {
            for secret in secrets {
                let line = text.lines().find(|line| line.contains(secret.as_str()));
                ensure!(
                    line.is_none(),
                    "{what}: {place} tells {secret}: {}",
                    line.unwrap_or_default()
                );
            }
        }
        // Something was told, or nothing could sing.
        ensure!(
            told.iter()
                .all(|(place, text)| !text.is_empty() || *place == "a file beside subnet.env"),
            "{what}: {told:?}"
        );
        Ok(())
    }
}

/// The longest line of a PEM file: what nobody writes by chance.
fn inside(pem: &Path) -> Result<String> {
    let text = std::fs::read_to_string(pem)?;
    text.lines()
        .filter(|line| !line.starts_with("---"))
        .max_by_key(|line| line.len())
        .map(str::to_owned)
        .context("an empty file")
}

#[test]
fn secrets_of_etcd_are_told_nobody() -> Result<()> {
    Lab::run("canary: etcd", |lab| {
        let lan = lab.switch("lan")?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(
            &[&machine],
            &EtcdOptions::default().tls().auth("flannel", CANARY),
        )?;
        let store = etcd.store()?;
        store.configure(VXLAN)?;
        let host = &lab.hosts(&lan, 1)?[0];
        let mut cage = Cage::new(lab, host)?;
        let all = store.args();
        let of = |name: &str| {
            all.iter()
                .find_map(|arg| {
                    arg.strip_prefix(&format!("--etcd-{name}="))
                        .map(str::to_owned)
                })
                .context("an argument")
        };
        let files = [of("keyfile")?, of("cafile")?, of("certfile")?];
        let mut secrets = files
            .iter()
            .map(|file| inside(Path::new(file)))
            .collect::<Result<Vec<_>>>()?;
        secrets.push(CANARY.to_owned());
        let plain: Vec<String> = all
            .iter()
            .filter(|arg| !arg.contains("-username=") && !arg.contains("-password="))
            .cloned()
            .collect();
        let variables =
            format!("FLANNELD_ETCD_USERNAME=flannel\nFLANNELD_ETCD_PASSWORD={CANARY}\n");
        let with = |args: &[String]| {
            args.iter()
                .fold(FlanneldOptions::bare(), |options, arg| options.arg(arg))
                .iface("enp0s8")
                .arg("--v=10")
        };

        for how in ["flag", "variable", "file"] {
            let options = match how {
                "flag" => with(&all),
                _ => with(&plain)
                    .env("FLANNELD_ETCD_USERNAME", "flannel")
                    .env("FLANNELD_ETCD_PASSWORD", CANARY),
            };
            std::fs::write(
                cage.folder.join("default/flanneld"),
                if how == "file" {
                    variables.as_str()
                } else {
                    ""
                },
            )?;
            let mut daemon = host.flanneld(&options).with_context(|| how.to_owned())?;
            let pid = daemon.pid();
            let knows = ["cmdline", "environ"].iter().any(|name| {
                std::fs::read(format!("/proc/{pid}/{name}"))
                    .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(CANARY))
            });
            ensure!(knows, "{how}: the daemon was not given the secret");
            cage.is_silent(how, &daemon, &all, &secrets)?;
            daemon.terminate(SOON)?;
            cage.is_silent(&format!("{how}, ended"), &daemon, &all, &secrets)?;
            std::fs::remove_file(daemon.log_path())?;
        }

        // Mistakes: a wrong password, one in the address, a key that is none.
        let wrong = format!("{CANARY}-wrong");
        let key = cage.folder.join("key.pem");
        std::fs::write(
            &key,
            format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n{CANARY}\n"),
        )?;
        let replaced = |name: &str, value: &str| -> Vec<String> {
            all.iter()
                .map(|arg| {
                    if arg.starts_with(&format!("--etcd-{name}=")) {
                        format!("--etcd-{name}={value}")
                    } else {
                        arg.clone()
                    }
                })
                .collect()
        };
        let address = of("endpoints")?.replace("https://", &format!("https://flannel:{CANARY}@"));
        for (what, args) in [
            ("a wrong password", replaced("password", &wrong)),
            ("a password in the address", replaced("endpoints", &address)),
            (
                "a key that is none",
                replaced("keyfile", &key.display().to_string()),
            ),
            (
                "an authority that is none",
                replaced("cafile", &key.display().to_string()),
            ),
        ] {
            let mut daemon = host.start_flanneld(&with(&args))?;
            eventually(SOON, "it says what is wrong", || {
                daemon.log().contains("WARN")
                    || daemon.log().contains("ERROR")
                    || !daemon.is_running()
            })?;
            cage.is_silent(what, &daemon, &args, &secrets)?;
            daemon.terminate(SOON)?;
            cage.is_silent(&format!("{what}, ended"), &daemon, &args, &secrets)?;
            std::fs::remove_file(daemon.log_path())?;
        }
        Ok(())
    })
}

/// A kubeconfig with a secret of each kind.
fn kubeconfig(server: &str, ca: Option<&Path>, user: &str) -> String {
    let ca = ca
        .map(|ca| format!(", certificate-authority: '{}'", ca.display()))
        .unwrap_or_default();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}'{ca}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    )
}

#[test]
fn secrets_of_kubernetes_are_told_nobody() -> Result<()> {
    let _turn = turn();
    Lab::run("canary: Kubernetes", |lab| {
        let lan = lab.switch("lan")?;
        let machine = lab.host(
            "api",
            &[Uplink::enp0s8(&lan, 99)?.gateway("192.168.56.254")?],
        )?;
        let api = ApiServer::start(&machine, Families::V4)?;
        let host = &lab.hosts(&lan, 1)?[0];
        api.admin().create_node(
            &NodeObject::new("h1")
                .pod_cidr("10.5.1.0/24")
                .internal(host.v4()?),
        )?;
        let mut cage = Cage::new(lab, host)?;
        let (net_conf, config, token_file) = (
            cage.folder.join("net-conf.json"),
            cage.folder.join("kubeconfig"),
            cage.folder.join("token"),
        );
        std::fs::write(&net_conf, VXLAN)?;
        let options = FlanneldOptions::kube("h1", &net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()))
            .arg("--v=10");
        let store = [
            "--kube-subnet-mgr=true".to_owned(),
            format!("--kubeconfig-file={}", config.display()),
            format!("--net-config-path={}", net_conf.display()),
        ];

        // Accepted: the server knows this token.
        let token = User::Flannel.token();
        std::fs::write(&token_file, &token)?;
        let ca = api.certificates().ca();
        for (what, user) in [
            ("a token", format!("{{token: '{token}'}}")),
            (
                "a token's file",
                format!("{{tokenFile: '{}'}}", token_file.display()),
            ),
        ] {
            std::fs::write(&config, kubeconfig(&api.url(), Some(&ca), &user))?;
            let mut daemon = host.flanneld(&options).with_context(|| what.to_owned())?;
            cage.is_silent(what, &daemon, &store, std::slice::from_ref(&token))?;
            daemon.terminate(SOON)?;
            cage.is_silent(
                &format!("{what}, ended"),
                &daemon,
                &store,
                std::slice::from_ref(&token),
            )?;
            std::fs::remove_file(daemon.log_path())?;
        }

        // Refused, or not understood.
        let secret = [CANARY.to_owned()];
        std::fs::write(&token_file, format!("{CANARY}\nsecond line"))?;
        let key = |text: &str| {
            format!("{{client-certificate-data: '{text}', client-key-data: '{text}'}}")
        };
        let data = CANARY.replace('-', "");
        for (what, text) in [
            (
                "a wrong token",
                kubeconfig(&api.url(), Some(&ca), &format!("{{token: {CANARY}}}")),
            ),
            (
                "a token that is no header",
                kubeconfig(
                    &api.url(),
                    Some(&ca),
                    &format!("{{token: \"{CANARY}\\n{CANARY}\"}}"),
                ),
            ),
            (
                "a token's file with two lines",
                kubeconfig(
                    &api.url(),
                    Some(&ca),
                    &format!("{{tokenFile: '{}'}}", token_file.display()),
                ),
            ),
            (
                "a user's password",
                kubeconfig(
                    &api.url(),
                    Some(&ca),
                    &format!("{{username: u, password: {CANARY}}}"),
                ),
            ),
            (
                "a key that is no Base64",
                kubeconfig(&api.url(), Some(&ca), &key(&format!("!{CANARY}"))),
            ),
            (
                "a key that is no key",
                kubeconfig(&api.url(), Some(&ca), &key(&data)),
            ),
            (
                "a user that is a text",
                kubeconfig(&api.url(), Some(&ca), CANARY),
            ),
            (
                "a token that is a list",
                kubeconfig(&api.url(), Some(&ca), &format!("{{token: [{CANARY}]}}")),
            ),
            (
                "a token where a file is wanted",
                kubeconfig(
                    &api.url(),
                    Some(&ca),
                    &format!("{{tokenFile: /nosuch, token: {{a: {CANARY}}}}}"),
                ),
            ),
            (
                "a password in the address",
                kubeconfig(
                    &format!("https://u:{CANARY}@192.168.56.199:6443"),
                    Some(&ca),
                    "{}",
                ),
            ),
            (
                "no YAML",
                format!("users: [{{token: {CANARY}\n\t{CANARY}: }}"),
            ),
        ] {
            std::fs::write(&config, text)?;
            let mut daemon = host.start_flanneld(&options)?;
            eventually(SOON, "it says what is wrong", || {
                daemon.log().contains("WARN")
                    || daemon.log().contains("ERROR")
                    || !daemon.is_running()
            })?;
            ensure!(!daemon.is_ready(), "{what}: it was accepted");
            cage.is_silent(what, &daemon, &store, &[secret[0].clone(), data.clone()])?;
            daemon.terminate(SOON)?;
            cage.is_silent(
                &format!("{what}, ended"),
                &daemon,
                &store,
                &[secret[0].clone(), data.clone()],
            )?;
            std::fs::remove_file(daemon.log_path())?;
        }
        Ok(())
    })
}

#[test]
fn secrets_in_the_network_configuration_are_told_nobody() -> Result<()> {
    Lab::run("canary: net-conf", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let mut cage = Cage::new(lab, host)?;
        let folder = lab.folder("leases")?;
        let store = Store::dir(&folder);
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--v=10");
        let backend = |backend: &str| format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#);
        let psk = format!(r#"{{"Type":"wireguard","PSK":"{CANARY}"}}"#);
        for (what, conf) in [
            ("wireguard", backend(&psk)),
            (
                "a configuration in a text",
                backend(&serde_json::Value::from(psk.clone()).to_string()),
            ),
            (
                "a key of the wrong type",
                backend(&format!(r#"{{"Type":{{"PSK":"{CANARY}"}}}}"#)),
            ),
            ("a list", backend(&format!(r#"["wireguard","{CANARY}"]"#))),
            (
                "vxlan with a key too many",
                backend(&format!(r#"{{"Type":"vxlan","PSK":"{CANARY}"}}"#)),
            ),
            ("no JSON", backend(&psk).replace("\",\"PSK", "\" \"PSK")),
            (
                "extension",
                backend(&format!(
                    r#"{{"Type":"extension","PreStartupCommand":"PASSWORD={CANARY} start","SubnetAddCommand":"curl -H 'Authorization: {CANARY}'"}}"#
                )),
            ),
            (
                "ipsec",
                backend(&format!(r#"{{"Type":"ipsec","PSK":"{CANARY}"}}"#)),
            ),
        ] {
            store.configure(&conf)?;
            let mut daemon = host.start_flanneld(&options)?;
            let said = || {
                daemon.log().contains("WARN") || daemon.log().contains("ERROR") || daemon.is_ready()
            };
            eventually(SOON, "it says something of it", said)
                .with_context(|| format!("{what}: {}", daemon.log()))?;
            cage.is_silent(what, &daemon, &store.args(), &[CANARY.to_owned()])?;
            let status = daemon.terminate(SOON)?;
            if ["wireguard", "extension", "ipsec"].contains(&what) {
                let why = if what == "wireguard" {
                    "could not parse psk"
                } else {
                    what
                };
                ensure!(
                    status.code() == Some(1) && daemon.log().contains(why),
                    "{what}: {status} {}",
                    daemon.log()
                );
                let words =
                    std::fs::read_to_string(format!("{}.ended", cage.subnet_file.display()))?;
                ensure!(words.contains(why), "{what}: {words}");
            }
            cage.is_silent(
                &format!("{what}, ended"),
                &daemon,
                &store.args(),
                &[CANARY.to_owned()],
            )?;
            std::fs::remove_file(daemon.log_path())?;
        }
        Ok(())
    })
}
