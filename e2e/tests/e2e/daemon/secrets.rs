//! No secret leaves the daemon. Each secret contains a canary, which appears in no log, response, support bundle, output of flannelctl, or file
//! that other users can read.
//!
//! There is one test for each store, with one [`Row`] for each source from which the daemon reads a secret.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lab::{
    ApiServer, EtcdOptions, Families, Flanneld, FlanneldOptions, Host, Lab, Launch, NodeObject,
    Scene, Uplink, User, binaries, require_success, stdout_and_stderr, until,
};

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// A word that no other text contains.
const CANARY: &str = "c4n4ry-0d9e8f7a6b";
const HEALTH_PATHS: [&str; 4] = ["/livez", "/readyz", "/metrics", "/status"];
const API_PATHS: [&str; 5] =
    ["/", "/api/v1/view", "/api/v1/node", "/api/v1/node?rows", "/api/v1/findings"];
const COMMANDS: [&str; 6] =
    ["status", "status -o json", "peers", "peers -o json", "doctor --all", "doctor -o json"];

/// A secret, its source, and what the daemon does.
struct Row {
    name: String,
    /// Written before the daemon starts.
    files: Vec<(PathBuf, String)>,
    options: FlanneldOptions,
    /// Of flannelctl.
    store: Vec<String>,
    secrets: Vec<String>,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Outcome {
    Ready,
    /// A warning, an error or an exit, and no readiness.
    Refused,
    /// A warning, an error, an exit or readiness.
    Any,
}

/// A host whose daemon uses secrets, and which has its own /etc/default.
struct HostWithDefaults {
    host: Host,
    folder: PathBuf,
    scripts: u32,
}

impl HostWithDefaults {
    fn new(lab: &Lab, host: &Host) -> Result<HostWithDefaults> {
        let folder = lab.ensure_folder("defaults")?;
        std::fs::create_dir_all(folder.join("default"))?;
        Ok(HostWithDefaults { host: host.clone(), folder, scripts: 0 })
    }

    fn etc_default_flanneld_path(&self) -> PathBuf {
        self.folder.join("default/flanneld")
    }

    /// Checks one row after the other, because all share the host's subnet.env.
    fn run_and_check_each_row(&mut self, rows: &[Row]) -> Result<()> {
        ensure!(!rows.is_empty(), "no rows");
        rows.iter().try_for_each(|row| {
            self.run_daemon_and_check_secrets(row).with_context(|| row.name.clone())
        })
    }

    fn run_daemon_and_check_secrets(&mut self, row: &Row) -> Result<()> {
        for (path, text) in &row.files {
            std::fs::write(path, text)?;
        }
        let mut daemon = self.host.start_flanneld(&row.options)?;
        let is_told = |log: &str| log.contains("WARN") || log.contains("ERROR");
        if matches!(row.outcome, Outcome::Ready) {
            daemon.wait_ready()?;
            // If the daemon had no secret, outputs without the secret would prove nothing.
            let given = ["cmdline", "environ"]
                .map(|name| {
                    std::fs::read(format!("/proc/{}/{name}", daemon.pid())).unwrap_or_default()
                })
                .concat();
            ensure!(
                String::from_utf8_lossy(&given).contains(CANARY)
                    || !row.secrets.iter().any(|secret| secret == CANARY),
                "the daemon has no secret"
            );
        } else {
            until("a warning, an error, an exit or readiness", || {
                is_told(&daemon.log()) || daemon.is_ready() || !daemon.is_running()
            })?;
            ensure!(
                !matches!(row.outcome, Outcome::Refused) || !daemon.is_ready(),
                "the secret was accepted"
            );
        }
        self.require_daemon_and_flannelctl_hide_secrets(&daemon, &row.store, &row.secrets)?;
        daemon.terminate()?;
        self.require_daemon_and_flannelctl_hide_secrets(&daemon, &row.store, &row.secrets)?;
        // The log of the next row starts empty.
        Ok(std::fs::remove_file(daemon.log_path())?)
    }

    /// No output of the daemon or of flannelctl contains a secret, and none is empty. `store` contains flannelctl's flags for the store.
    fn require_daemon_and_flannelctl_hide_secrets(
        &mut self,
        daemon: &Flanneld,
        store: &[String],
        secrets: &[String],
    ) -> Result<()> {
        let mut outputs = vec![("log".to_owned(), daemon.log())];
        let health = HEALTH_PATHS.map(|path| (path, daemon.get_health_endpoint(path)));
        let answers =
            health.into_iter().chain(API_PATHS.map(|path| (path, daemon.get_status_api(path))));
        outputs.extend(answers.filter_map(|(path, got)| Some((path.to_owned(), got.ok()?.1))));
        let program = binaries::flannel_binary("flannelctl")?.display().to_string();
        let file = format!("'--subnet-file={}'", daemon.subnet_file().display());
        let bundle = self.folder.join(format!("b{}.tar.gz", self.scripts)).display().to_string();
        let store = store.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let mut scripts = COMMANDS.map(|words| format!("{program} {words} {file}")).to_vec();
        scripts.push(format!("{program} leases --long {store}"));
        scripts
            .push(format!("{program} support-bundle {file} --file {bundle} && tar -xzOf {bundle}"));
        for script in scripts {
            let text = self.run_script_ignoring_failure(&script)?;
            outputs.push((script, text));
        }
        ensure!(Path::new(&bundle).exists(), "no bundle");
        ensure!(outputs.iter().all(|(_, text)| !text.is_empty()), "{outputs:?}");
        for entry in
            std::fs::read_dir(daemon.subnet_file().parent().context("a folder")?)?.flatten()
        {
            outputs.extend(
                std::fs::read_to_string(entry.path())
                    .ok()
                    .map(|text| (entry.path().display().to_string(), text)),
            );
        }
        ensure!(
            !secrets.is_empty() && secrets.iter().all(|secret| secret.len() > 8),
            "{secrets:?}"
        );
        for (place, text) in &outputs {
            let line = text.lines().find(|line| secrets.iter().any(|secret| line.contains(secret)));
            ensure!(line.is_none(), "{place} shows a secret: {line:?}");
        }
        Ok(())
    }

    /// The script sees the host's own /etc/default. The exit code does not matter.
    fn run_script_ignoring_failure(&mut self, script: &str) -> Result<String> {
        self.scripts += 1;
        let script = format!(
            "mkdir -p /etc/default; mount --bind '{}' /etc/default\n{script}",
            self.folder.join("default").display()
        );
        let mut process = self
            .host
            .spawn(&format!("script-{}", self.scripts), &Launch::new("sh").args(["-c", &script]))?;
        process.wait()?;
        Ok(process.log())
    }
}

#[test]
fn etcd_secrets_are_never_shown() -> Result<()> {
    let etcd = EtcdOptions::default().tls().auth("flannel", CANARY);
    Scene::with_title("canary: etcd").nodes(1).etcd_with(etcd).without_daemons().run(|s| {
        let mut host = HostWithDefaults::new(s.lab, &s[0])?;
        let rows = etcd_rows(s, &host)?;
        host.run_and_check_each_row(&rows)
    })
}

/// The password, and the longest line of each PEM file, which occurs nowhere else by chance.
fn etcd_secrets(s: &Scene<'_>) -> Result<Vec<String>> {
    let certificates = s.etcd.as_ref().unwrap().client_on_first_member()?;
    let certificates = certificates.certificates().context("certificates")?;
    let mut secrets = vec![CANARY.to_owned()];
    for pem in [certificates.ca(), certificates.client(), certificates.client_key()] {
        let text = std::fs::read_to_string(pem)?;
        let longest =
            text.lines().filter(|line| !line.starts_with("---")).max_by_key(|line| line.len());
        secrets.push(longest.context("an empty file")?.to_owned());
    }
    Ok(secrets)
}

/// One row for each source of etcd's password, and for each wrong flag that could reveal a secret.
fn etcd_rows(s: &Scene<'_>, host: &HostWithDefaults) -> Result<Vec<Row>> {
    let (all, secrets) = (s.store.daemon_args(), etcd_secrets(s)?);
    let options = |args: &[String]| {
        args.iter()
            .fold(FlanneldOptions::bare(), |options, arg| options.arg(arg))
            .iface("enp0s8")
            .arg("--v=10")
    };
    let plain: Vec<String> = all
        .iter()
        .filter(|arg| !arg.contains("-username=") && !arg.contains("-password="))
        .cloned()
        .collect();
    let by_variable = options(&plain)
        .env("FLANNELD_ETCD_USERNAME", "flannel")
        .env("FLANNELD_ETCD_PASSWORD", CANARY);
    let variables = format!("FLANNELD_ETCD_USERNAME=flannel\nFLANNELD_ETCD_PASSWORD={CANARY}\n");
    let row =
        |name: &str, options: FlanneldOptions, store: &[String], variables: &str, outcome| Row {
            name: name.to_owned(),
            files: vec![(host.etc_default_flanneld_path(), variables.to_owned())],
            options,
            store: store.to_vec(),
            secrets: secrets.clone(),
            outcome,
        };
    let mut rows = vec![
        row("password in a flag", options(&all), &all, "", Outcome::Ready),
        row(
            "password in variables, for flannelctl in a file",
            by_variable,
            &all,
            &variables,
            Outcome::Ready,
        ),
    ];
    let key = host.folder.join("key.pem");
    std::fs::write(
        &key,
        format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n{CANARY}\n"),
    )?;
    let key = format!("={}", key.display());
    for (flag, from, to) in [
        ("--etcd-password", CANARY, format!("{CANARY}-wrong")),
        ("--etcd-endpoints", "https://", format!("https://flannel:{CANARY}@")),
        ("--etcd-keyfile", "=", key.clone()),
        ("--etcd-cafile", "=", key),
    ] {
        let change = |arg: &String| {
            if !arg.starts_with(flag) {
                arg.clone()
            } else if from == "=" {
                format!("{flag}{to}")
            } else {
                arg.replace(from, &to)
            }
        };
        let args: Vec<String> = all.iter().map(change).collect();
        ensure!(args != all, "{flag} is no argument");
        rows.push(row(flag, options(&args), &args, &variables, Outcome::Any));
    }
    Ok(rows)
}

/// The kubeconfig has one user.
fn kubeconfig_text(server: &str, ca: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}', certificate-authority: '{ca}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    )
}

#[test]
fn kubernetes_secrets_are_never_shown() -> Result<()> {
    Lab::run("canary: Kubernetes", |lab| {
        let lan = lab.create_switch("lan")?;
        let machine =
            lab.create_host("api", &[Uplink::enp0s8(&lan, 99)?.gateway("192.168.56.254")?])?;
        let api = ApiServer::start(&machine, Families::V4)?;
        let host = &lab.create_hosts(&lan, 1)?[0];
        api.admin().create_node(
            &NodeObject::new("h1").pod_cidr("10.5.1.0/24").add_internal_address(host.v4()?),
        )?;
        let mut host = HostWithDefaults::new(lab, host)?;
        let path = |name: &str| host.folder.join(name).display().to_string();
        let (net_conf, config, token_file) =
            (path("net-conf.json"), path("kubeconfig"), path("token"));
        std::fs::write(&net_conf, VXLAN)?;
        let ca = api.certificates().ca().display().to_string();
        let kubeconfig = |server: &str, user: &str| kubeconfig_text(server, &ca, user);
        let key = |text: &str| {
            format!("{{client-certificate-data: '{text}', client-key-data: '{text}'}}")
        };
        let by_file = format!("{{tokenFile: '{token_file}'}}");
        let (token, word, lines) =
            (User::Flannel.token(), CANARY.replace('-', ""), format!("{CANARY}\nsecond line"));
        let accepted = [format!("{{token: '{token}'}}"), by_file.clone()]
            .map(|user| (kubeconfig(&api.url(), &user), &token, Outcome::Ready));
        let users = [
            format!("{{token: {CANARY}}}"),
            format!("{{token: \"{CANARY}\\n{CANARY}\"}}"),
            by_file,
            format!("{{username: u, password: {CANARY}}}"),
            key(&format!("!{CANARY}")),
            key(&word),
            CANARY.to_owned(),
            format!("{{token: [{CANARY}]}}"),
            format!("{{tokenFile: /nosuch, token: {{a: {CANARY}}}}}"),
        ];
        let refused = users.map(|user| kubeconfig(&api.url(), &user)).into_iter().chain([
            kubeconfig(&format!("https://u:{CANARY}@192.168.56.199:6443"), "{}"),
            format!("users: [{{token: {CANARY}\n\t{CANARY}: }}"),
        ]);
        let rows = accepted.into_iter().chain(refused.map(|text| (text, &lines, Outcome::Refused)));
        let row = |(text, token, outcome): (String, &String, Outcome)| Row {
            name: text.clone(),
            files: vec![
                (PathBuf::from(&config), text),
                (PathBuf::from(&token_file), token.clone()),
            ],
            options: FlanneldOptions::kube("h1", Path::new(&net_conf))
                .arg(&format!("--kubeconfig-file={config}"))
                .arg("--v=10"),
            store: vec![
                "--kube-subnet-mgr=true".to_owned(),
                format!("--kubeconfig-file={config}"),
                format!("--net-config-path={net_conf}"),
            ],
            secrets: if matches!(outcome, Outcome::Ready) {
                vec![token.clone()]
            } else {
                vec![CANARY.to_owned(), word.clone()]
            },
            outcome,
        };
        let rows: Vec<Row> = rows.map(row).collect();
        host.run_and_check_each_row(&rows)
    })
}

/// A preshared key or a password in well-formed and malformed configurations of a backend.
#[test]
fn network_configuration_secrets_are_never_shown() -> Result<()> {
    Scene::with_title("canary: net-conf").nodes(1).daemon_arg("--v=10").without_daemons().run(|s| {
        let mut host = HostWithDefaults::new(s.lab, &s[0])?;
        let psk = format!(r#"{{"Type":"wireguard","PSK":"{CANARY}"}}"#);
        let backends = [
            (psk.clone(), Outcome::Refused),
            (serde_json::Value::from(psk.clone()).to_string(), Outcome::Any),
            (format!(r#"{{"Type":{{"PSK":"{CANARY}"}}}}"#), Outcome::Any),
            (format!(r#"["wireguard","{CANARY}"]"#), Outcome::Any),
            (format!(r#"{{"Type":"vxlan","PSK":"{CANARY}"}}"#), Outcome::Any),
            // No JSON.
            (psk.replace("\",\"PSK", "\" \"PSK"), Outcome::Any),
            (format!(r#"{{"Type":"extension","SubnetAddCommand":"curl -H 'Authorization: {CANARY}'"}}"#), Outcome::Refused),
            (format!(r#"{{"Type":"ipsec","PSK":"{CANARY}"}}"#), Outcome::Refused),
        ];
        let config = s.lab.ensure_folder("leases")?.join("config");
        let rows = backends.map(|(backend, outcome)| Row {
            name: backend.clone(),
            files: vec![(config.clone(), format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#))],
            options: s[0].options.clone(),
            store: s.store.daemon_args(),
            secrets: vec![CANARY.to_owned()],
            outcome,
        });
        host.run_and_check_each_row(&rows)
    })
}

#[test]
fn support_bundle_is_private_complete_and_redacted() -> Result<()> {
    Scene::with_title("canary: bundle")
        .nodes(1)
        .etcd_with(EtcdOptions::default().auth("flannel", CANARY))
        .without_pods()
        .run(|s| {
            let daemon = s[0].daemon()?;
            // Another program's secret in a file that the bundle contains.
            std::fs::write(
                format!("{}.ended", daemon.subnet_file().display()),
                format!("etcdPassword:{CANARY}\n"),
            )?;
            let folder = s.lab.ensure_folder("bundle")?;
            let file = folder.join("b.tar.gz").display().to_string();
            require_success(
                "support-bundle",
                &daemon.flannelctl(&["support-bundle", "--file", &file])?,
            )?;
            s[0].sh(&format!(
                "cd {} && tar -xzf b.tar.gz --strip-components=1 && rm b.tar.gz",
                folder.display()
            ))?;
            // The bundle contains each item of the list, or the reason for the item's absence.
            let listed = stdout_and_stderr(&daemon.flannelctl(&["support-bundle", "--list"])?);
            for item in listed.lines().filter_map(|line| line.split_whitespace().next()) {
                ensure!(
                    folder.join(item).exists() || folder.join(format!("{item}.missing")).exists(),
                    "{item} is not in the bundle: {listed}"
                );
            }
            for item in [
                "flanneld/node.json",
                "flanneld/subnet.env",
                "net/links.txt",
                "net/routes.txt",
                "net/nftables.txt",
            ] {
                ensure!(folder.join(item).exists(), "{item} could not be gathered");
            }
            let shown = s[0].sh(&format!("! grep -r {CANARY} {}", folder.display()))?;
            ensure!(shown.is_empty(), "{shown}");
            Ok(())
        })
}
