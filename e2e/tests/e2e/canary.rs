//! Tests that no secret leaves the daemon. Each secret contains a canary, which appears in no log, response,
//! support bundle, output of flannelctl, or file that other users can read.
//!
//! The tests form a table of stores and secrets, with one test for each store. Each secret has one [`Row`]
//! for each source from which the daemon reads the secret.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result, anyhow, ensure};
use lab::{
    ApiServer, Etcd, EtcdOptions, Families, Flanneld, FlanneldOptions, Host, Lab, Launch,
    NodeObject, Store, Uplink, User, binaries, succeeded, texts, until, until_ok,
};

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// Canary in the secrets: a word that no other text contains.
pub(crate) const CANARY: &str = "c4n4ry-0d9e8f7a6b";
const HEALTH_PATHS: [&str; 4] = ["/livez", "/readyz", "/metrics", "/status"];
const API_PATHS: [&str; 5] = [
    "/",
    "/api/v1/view",
    "/api/v1/node",
    "/api/v1/node?rows",
    "/api/v1/findings",
];
/// Name of each output from a file next to subnet.env; only these outputs may be empty.
const NEIGHBOUR_FILE: &str = "a file next to subnet.env";

/// One row of the table: a secret, its source, and the expected outcome.
struct Row {
    name: String,
    /// Files that the test writes before the daemon starts.
    files: Vec<(PathBuf, String)>,
    options: FlanneldOptions,
    /// Flags of flannelctl that name the store.
    store: Vec<String>,
    secrets: Vec<String>,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Outcome {
    Ready,
    /// Readiness of a daemon whose arguments or environment contain the canary (the word in each secret).
    ReadyWithCanary,
    /// A warning, an error or an exit of the daemon.
    Complaint,
    /// A warning, an error or an exit of a daemon that is not ready.
    Refusal,
    /// A warning or an error from the daemon, or the daemon's readiness.
    ComplaintOrReady,
    /// An exit of the daemon with code 1, after a warning, an error or readiness. The log and the exit report contain the variant's text.
    Exit(&'static str),
}

impl Outcome {
    fn wait(self, daemon: &mut Flanneld) -> Result<()> {
        match self {
            Outcome::Ready => daemon.wait_ready().map(drop),
            Outcome::ReadyWithCanary => {
                daemon.wait_ready()?;
                require_canary_given(daemon)
            }
            Outcome::Complaint => complaint_or_exit(daemon),
            Outcome::Refusal => {
                complaint_or_exit(daemon)?;
                ensure!(!daemon.is_ready(), "it was accepted");
                Ok(())
            }
            Outcome::ComplaintOrReady | Outcome::Exit(_) => {
                until("a warning, an error or readiness", || {
                    complains(daemon) || daemon.is_ready()
                })
                .map(drop)
            }
        }
    }
}

fn complaint_or_exit(daemon: &mut Flanneld) -> Result<()> {
    until("a warning, an error or an exit", || {
        complains(daemon) || !daemon.is_running()
    })
    .map(drop)
}

fn complains(daemon: &Flanneld) -> bool {
    let log = daemon.log();
    log.contains("WARN") || log.contains("ERROR")
}

/// Checks that the daemon received the secret. If the daemon had no secret, outputs without the secret would prove nothing.
fn require_canary_given(daemon: &Flanneld) -> Result<()> {
    let pid = daemon.pid();
    let given = ["cmdline", "environ"].iter().any(|name| {
        std::fs::read(format!("/proc/{pid}/{name}"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(CANARY))
    });
    ensure!(given, "the daemon was not given the secret");
    Ok(())
}

/// A host whose daemon uses secrets, and which has its own /etc/default.
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

    /// Returns the path of the host's /etc/default/flanneld.
    fn default_file(&self) -> PathBuf {
        self.folder.join("default/flanneld")
    }

    /// Checks the rows one after the other, because all rows share the host's subnet.env. Returns an error that names each row that failed.
    fn check_all(&mut self, rows: &[Row]) -> Result<()> {
        ensure!(!rows.is_empty(), "no rows");
        let failures: Vec<String> = rows
            .iter()
            .filter_map(|row| {
                let error = self.check(row).err()?;
                Some(format!("{}: {error:#}", row.name))
            })
            .collect();
        ensure!(
            failures.is_empty(),
            "{} of {} row(s) failed:\n{}",
            failures.len(),
            rows.len(),
            failures.join("\n")
        );
        Ok(())
    }

    fn check(&mut self, row: &Row) -> Result<()> {
        for (path, text) in &row.files {
            std::fs::write(path, text)?;
        }
        let mut daemon = self.host.start_flanneld(&row.options)?;
        let checked = self
            .check_daemon(row, &mut daemon)
            .map_err(|error| anyhow!("{error:#}\nits log ends so:\n{}", daemon.log_tail(20)));
        // The log of the next row starts empty.
        std::fs::remove_file(daemon.log_path())?;
        checked
    }

    fn check_daemon(&mut self, row: &Row, daemon: &mut Flanneld) -> Result<()> {
        row.outcome.wait(daemon)?;
        self.require_silence("running", daemon, &row.store, &row.secrets)?;
        let status = daemon.terminate()?;
        if let Outcome::Exit(cause) = row.outcome {
            self.require_exit_report(daemon, status, cause)?;
        }
        self.require_silence("ended", daemon, &row.store, &row.secrets)
    }

    fn require_exit_report(
        &self,
        daemon: &Flanneld,
        status: ExitStatus,
        cause: &str,
    ) -> Result<()> {
        ensure!(
            status.code() == Some(1) && daemon.log().contains(cause),
            "{status}, not for {cause}"
        );
        let report = std::fs::read_to_string(format!("{}.ended", self.subnet_file.display()))?;
        ensure!(report.contains(cause), "no {cause} in {report}");
        Ok(())
    }

    /// Checks that no output of the daemon or of flannelctl contains a secret. `store` contains flannelctl's flags for the store.
    fn require_silence(
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
        let mut outputs = answers(daemon);
        outputs.extend(self.flannelctl_outputs(store)?);
        outputs.push(("bundle", self.bundle()?));
        outputs.extend(self.neighbour_files()?);
        for (place, text) in &outputs {
            for secret in secrets {
                let line = text.lines().find(|line| line.contains(secret.as_str()));
                ensure!(
                    line.is_none(),
                    "{what}: {place} shows {secret}: {}",
                    line.unwrap_or_default()
                );
            }
        }
        // An empty output would prove nothing.
        ensure!(
            outputs
                .iter()
                .all(|(place, text)| !text.is_empty() || *place == NEIGHBOUR_FILE),
            "{what}: {outputs:?}"
        );
        Ok(())
    }

    fn flannelctl_outputs(&mut self, store: &[String]) -> Result<Vec<(&'static str, String)>> {
        let program = binaries::own("flannelctl")?;
        let program = program.display();
        let file = format!("--subnet-file={}", self.subnet_file.display());
        let mut outputs = Vec::new();
        for words in [
            "status",
            "status -o json",
            "peers",
            "peers -o json",
            "doctor --all",
            "doctor -o json",
        ] {
            outputs.push((words, self.sh(&format!("'{program}' {words} '{file}'"))?));
        }
        let store = store
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ");
        outputs.push((
            "leases",
            self.sh(&format!("'{program}' leases --long {store}"))?,
        ));
        Ok(outputs)
    }

    /// Creates a support bundle and returns the content of all its files.
    fn bundle(&mut self) -> Result<String> {
        let program = binaries::own("flannelctl")?;
        let bundle = self.folder.join(format!("b{}.tar.gz", self.scripts));
        let made = self.sh(&format!(
            "'{}' support-bundle '--subnet-file={}' --file '{}'",
            program.display(),
            self.subnet_file.display(),
            bundle.display()
        ))?;
        ensure!(bundle.exists(), "{made}");
        self.sh(&format!("tar -xzOf '{}'", bundle.display()))
    }

    fn neighbour_files(&self) -> Result<Vec<(&'static str, String)>> {
        let folder = self.subnet_file.parent().context("a folder")?;
        let files = std::fs::read_dir(folder)?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        Ok(files
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                (NEIGHBOUR_FILE, text)
            })
            .collect())
    }

    /// Runs a script with the host's own /etc/default, and returns its output regardless of the exit code.
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
        process.wait()?;
        Ok(process.log())
    }
}

/// Returns the daemon's log and, if the daemon runs, its HTTP responses.
fn answers(daemon: &Flanneld) -> Vec<(&'static str, String)> {
    let mut outputs = vec![("log", daemon.log())];
    for path in HEALTH_PATHS {
        outputs.extend(daemon.get(path).ok().map(|(_, text)| (path, text)));
    }
    for path in API_PATHS {
        outputs.extend(daemon.api(path).ok().map(|(_, text)| (path, text)));
    }
    outputs
}

/// Returns the longest line of a PEM file. The line is long enough to occur nowhere else by chance.
fn longest_line(pem: &Path) -> Result<String> {
    let text = std::fs::read_to_string(pem)?;
    text.lines()
        .filter(|line| !line.starts_with("---"))
        .max_by_key(|line| line.len())
        .map(str::to_owned)
        .context("an empty file")
}

#[test]
fn etcd_secrets_are_never_shown() -> Result<()> {
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
        let rows = etcd_rows(&cage, &store.args())?;
        cage.check_all(&rows)
    })
}

/// Returns the value of `--etcd-<name>`.
fn etcd_arg(args: &[String], name: &str) -> Result<String> {
    args.iter()
        .find_map(|arg| {
            arg.strip_prefix(&format!("--etcd-{name}="))
                .map(str::to_owned)
        })
        .context("an argument")
}

fn with_etcd_arg(args: &[String], name: &str, value: &str) -> Vec<String> {
    args.iter()
        .map(|arg| {
            if arg.starts_with(&format!("--etcd-{name}=")) {
                format!("--etcd-{name}={value}")
            } else {
                arg.clone()
            }
        })
        .collect()
}

fn etcd_options(args: &[String]) -> FlanneldOptions {
    args.iter()
        .fold(FlanneldOptions::bare(), |options, arg| options.arg(arg))
        .iface("enp0s8")
        .arg("--v=10")
}

/// Returns rows for each source of etcd's password, and for each wrong flag value that could reveal a secret.
fn etcd_rows(cage: &Cage, all: &[String]) -> Result<Vec<Row>> {
    let mut secrets = ["keyfile", "cafile", "certfile"]
        .iter()
        .map(|name| longest_line(Path::new(&etcd_arg(all, name)?)))
        .collect::<Result<Vec<_>>>()?;
    secrets.push(CANARY.to_owned());
    let plain: Vec<String> = all
        .iter()
        .filter(|arg| !arg.contains("-username=") && !arg.contains("-password="))
        .cloned()
        .collect();
    let variables = format!("FLANNELD_ETCD_USERNAME=flannel\nFLANNELD_ETCD_PASSWORD={CANARY}\n");
    let by_variable = etcd_options(&plain)
        .env("FLANNELD_ETCD_USERNAME", "flannel")
        .env("FLANNELD_ETCD_PASSWORD", CANARY);
    let row = |name: &str, options: FlanneldOptions, default_file: &str| Row {
        name: format!("etcd, {name}"),
        files: vec![(cage.default_file(), default_file.to_owned())],
        options,
        store: all.to_vec(),
        secrets: secrets.clone(),
        outcome: Outcome::ReadyWithCanary,
    };
    let mut rows = vec![
        row("password in a flag", etcd_options(all), ""),
        row("password in a variable", by_variable.clone(), ""),
        row("password in a file of variables", by_variable, &variables),
    ];
    let key = cage.folder.join("key.pem");
    std::fs::write(
        &key,
        format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n{CANARY}\n"),
    )?;
    let key = key.display().to_string();
    let address =
        etcd_arg(all, "endpoints")?.replace("https://", &format!("https://flannel:{CANARY}@"));
    for (name, flag, value) in [
        ("wrong password", "password", format!("{CANARY}-wrong")),
        ("password in the address", "endpoints", address),
        ("key that is none", "keyfile", key.clone()),
        ("authority that is none", "cafile", key),
    ] {
        let args = with_etcd_arg(all, flag, &value);
        rows.push(Row {
            store: args.clone(),
            outcome: Outcome::Complaint,
            ..row(name, etcd_options(&args), &variables)
        });
    }
    Ok(rows)
}

#[test]
fn kubernetes_secrets_are_never_shown() -> Result<()> {
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
        let rows = kubernetes_rows(&cage, &api.url(), &api.certificates().ca())?;
        cage.check_all(&rows)
    })
}

/// Returns a kubeconfig for one user.
fn kubeconfig(server: &str, ca: &Path, user: &str) -> String {
    let ca = ca.display();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}', certificate-authority: '{ca}'}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    )
}

/// Returns rows for Kubernetes credentials that the API server accepts or refuses, and for malformed credentials.
fn kubernetes_rows(cage: &Cage, server: &str, ca: &Path) -> Result<Vec<Row>> {
    let (net_conf, config, token_file) = (
        cage.folder.join("net-conf.json"),
        cage.folder.join("kubeconfig"),
        cage.folder.join("token"),
    );
    std::fs::write(&net_conf, VXLAN)?;
    let options = FlanneldOptions::kube("h1", &net_conf)
        .arg(&format!("--kubeconfig-file={}", config.display()))
        .arg("--v=10");
    let store = vec![
        "--kube-subnet-mgr=true".to_owned(),
        format!("--kubeconfig-file={}", config.display()),
        format!("--net-config-path={}", net_conf.display()),
    ];
    let row = |name: &str, kubeconfig: String, token: String, secrets: &[String], outcome| Row {
        name: format!("Kubernetes, {name}"),
        files: vec![(config.clone(), kubeconfig), (token_file.clone(), token)],
        options: options.clone(),
        store: store.clone(),
        secrets: secrets.to_vec(),
        outcome,
    };

    let token = User::Flannel.token();
    let accepted = [
        ("token", format!("{{token: '{token}'}}")),
        (
            "file of a token",
            format!("{{tokenFile: '{}'}}", token_file.display()),
        ),
    ];
    let mut rows: Vec<Row> = accepted
        .into_iter()
        .map(|(name, user)| {
            let kubeconfig = kubeconfig(server, ca, &user);
            row(
                name,
                kubeconfig,
                token.clone(),
                std::slice::from_ref(&token),
                Outcome::Ready,
            )
        })
        .collect();
    let secrets = [CANARY.to_owned(), CANARY.replace('-', "")];
    rows.extend(
        refused_kubeconfigs(server, ca, &token_file)
            .into_iter()
            .map(|(name, kubeconfig)| {
                let token = format!("{CANARY}\nsecond line");
                row(name, kubeconfig, token, &secrets, Outcome::Refusal)
            }),
    );
    Ok(rows)
}

/// Returns named kubeconfigs that the API server refuses or that flanneld cannot parse.
fn refused_kubeconfigs(server: &str, ca: &Path, token_file: &Path) -> Vec<(&'static str, String)> {
    let key =
        |text: &str| format!("{{client-certificate-data: '{text}', client-key-data: '{text}'}}");
    let users = [
        ("wrong token", format!("{{token: {CANARY}}}")),
        (
            "token that is no header",
            format!("{{token: \"{CANARY}\\n{CANARY}\"}}"),
        ),
        (
            "file of a token with two lines",
            format!("{{tokenFile: '{}'}}", token_file.display()),
        ),
        (
            "password of a user",
            format!("{{username: u, password: {CANARY}}}"),
        ),
        ("key that is no Base64", key(&format!("!{CANARY}"))),
        ("key that is no key", key(&CANARY.replace('-', ""))),
        ("user that is a text", CANARY.to_owned()),
        ("token that is a list", format!("{{token: [{CANARY}]}}")),
        (
            "token where a file is expected",
            format!("{{tokenFile: /nosuch, token: {{a: {CANARY}}}}}"),
        ),
    ];
    let mut refused: Vec<_> = users
        .into_iter()
        .map(|(name, user)| (name, kubeconfig(server, ca, &user)))
        .collect();
    refused.push((
        "password in the address",
        kubeconfig(&format!("https://u:{CANARY}@192.168.56.199:6443"), ca, "{}"),
    ));
    refused.push((
        "no YAML",
        format!("users: [{{token: {CANARY}\n\t{CANARY}: }}"),
    ));
    refused
}

#[test]
fn network_configuration_secrets_are_never_shown() -> Result<()> {
    Lab::run("canary: net-conf", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let mut cage = Cage::new(lab, host)?;
        let folder = lab.folder("leases")?;
        let store = Store::dir(&folder);
        // This creates the folder. Each row writes its own configuration.
        store.configure(VXLAN)?;
        cage.check_all(&net_conf_rows(&store, &folder))
    })
}

/// Returns rows with a preshared key or a password in well-formed and malformed backend configurations.
fn net_conf_rows(store: &Store, folder: &Path) -> Vec<Row> {
    let psk = format!(r#"{{"Type":"wireguard","PSK":"{CANARY}"}}"#);
    let network = |backend: &str| format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#);
    let row = |name: &str, net_conf: String, outcome| Row {
        name: format!("net-conf, {name}"),
        files: vec![(folder.join("config"), net_conf)],
        options: FlanneldOptions::new(store).iface("enp0s8").arg("--v=10"),
        store: store.args(),
        secrets: vec![CANARY.to_owned()],
        outcome,
    };
    let backend = |name: &str, backend: &str, outcome| row(name, network(backend), outcome);
    let either = Outcome::ComplaintOrReady;
    vec![
        backend("wireguard", &psk, Outcome::Exit("could not parse psk")),
        backend(
            "configuration in a text",
            &serde_json::Value::from(psk.clone()).to_string(),
            either,
        ),
        backend(
            "key of the wrong type",
            &format!(r#"{{"Type":{{"PSK":"{CANARY}"}}}}"#),
            either,
        ),
        backend("list", &format!(r#"["wireguard","{CANARY}"]"#), either),
        backend(
            "vxlan with a key too many",
            &format!(r#"{{"Type":"vxlan","PSK":"{CANARY}"}}"#),
            either,
        ),
        row(
            "no JSON",
            network(&psk).replace("\",\"PSK", "\" \"PSK"),
            either,
        ),
        backend(
            "extension",
            &format!(
                r#"{{"Type":"extension","PreStartupCommand":"PASSWORD={CANARY} start","SubnetAddCommand":"curl -H 'Authorization: {CANARY}'"}}"#
            ),
            Outcome::Exit("extension"),
        ),
        backend(
            "ipsec",
            &format!(r#"{{"Type":"ipsec","PSK":"{CANARY}"}}"#),
            Outcome::Exit("ipsec"),
        ),
    ]
}

#[test]
fn support_bundle_is_private_complete_and_redacted() -> Result<()> {
    Lab::run("canary: bundle", |lab| {
        let lan = lab.switch("lan")?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default().auth("flannel", CANARY))?;
        let store = etcd.store()?;
        store.configure(VXLAN)?;
        let host = &lab.hosts(&lan, 1)?[0];
        let mut cage = Cage::new(lab, host)?;
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))?;
        require_canary_given(&daemon)?;
        require_answers(&daemon)?;
        cage.require_silence("running", &daemon, &store.args(), &[CANARY.to_owned()])?;

        // Another program's secret in a file that the bundle contains.
        std::fs::write(
            format!("{}.ended", daemon.subnet_file().display()),
            format!("etcdPassword:{CANARY}\n"),
        )?;
        let bundle = lab.folder("bundle")?;
        unpack_bundle(host, &daemon, &bundle)?;
        require_complete(&daemon, &bundle)?;
        let files = host
            .netns()
            .exec("grep", &["-r", "", &bundle.display().to_string()])?;
        let line = files.lines().find(|line| line.contains(CANARY));
        ensure!(line.is_none(), "{}", line.unwrap_or_default());
        Ok(())
    })
}

/// Checks that the daemon and flannelctl respond. The absence of a secret from the output of a failed program proves nothing.
fn require_answers(daemon: &Flanneld) -> Result<()> {
    for path in HEALTH_PATHS {
        daemon.get(path)?;
    }
    until_ok("the status API answers", || daemon.api("/api/v1/node"))?;
    for args in [
        &["status"][..],
        &["status", "-o", "json"],
        &["peers"],
        &["peers", "-o", "json"],
    ] {
        until_ok("flannelctl succeeds", || {
            succeeded(&args.join(" "), &daemon.flannelctl(args)?).map(drop)
        })?;
    }
    Ok(())
}

/// Creates a support bundle, checks that only root can read the bundle, and unpacks the bundle into `folder`.
fn unpack_bundle(host: &Host, daemon: &Flanneld, folder: &Path) -> Result<()> {
    let file = folder.join("b.tar.gz").display().to_string();
    succeeded(
        "support-bundle",
        &daemon.flannelctl(&["support-bundle", "--file", &file])?,
    )?;
    let meta = std::fs::metadata(&file)?;
    ensure!(
        meta.permissions().mode() & 0o777 == 0o600 && meta.len() < 20_000_000,
        "{meta:?}"
    );
    let folder = folder.display().to_string();
    host.netns()
        .exec(
            "tar",
            &["-xzf", &file, "-C", &folder, "--strip-components=1"],
        )
        .map(drop)
}

/// Checks that the bundle contains each item of `support-bundle --list`, or the reason for the item's absence.
fn require_complete(daemon: &Flanneld, bundle: &Path) -> Result<()> {
    let listed = texts(&daemon.flannelctl(&["support-bundle", "--list"])?);
    for item in listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        let exists = [item.to_owned(), format!("{item}.missing")]
            .iter()
            .any(|name| bundle.join(name).exists());
        ensure!(exists, "{item} is not in the bundle: {listed}");
    }
    for item in [
        "flanneld/node.json",
        "flanneld/subnet.env",
        "net/links.txt",
        "net/routes.txt",
        "net/nftables.txt",
    ] {
        ensure!(
            bundle.join(item).exists(),
            "{item} could not be gathered: {:?}",
            std::fs::read_to_string(bundle.join(format!("{item}.missing")))
        );
    }
    Ok(())
}
