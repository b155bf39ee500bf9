//! Tests that findings appear and disappear in the log, in /status and in /metrics.

use super::*;
use crate::health::condition::Condition;
use doctor::facts::Network;
use doctor::facts::host::Sysctls;
use doctor::look::Places;
use doctor::look::sysctls;
use types::Subnets;

fn checks_of(health: &Health) -> (Checks, watch::Sender<Known>) {
    let (known_out, known) = watch::channel(Known::default());
    let mut checks =
        Checks::new(known, "/nosuch/subnet.env".into(), health.clone(), Arc::default());
    // The machine that runs the tests may be a node of Kubernetes.
    let nowhere = PathBuf::from("/nosuch");
    checks.look.places = Places {
        cni: nowhere.join("cni"),
        ipam: nowhere.join("ipam"),
        kubelet: nowhere,
        ..Places::default()
    };
    (checks, known_out)
}

fn facts(ip_forward: i64) -> Facts {
    let network = Network {
        networks: Subnets::V4("10.244.0.0/16".parse().unwrap()),
        own: Subnets::V4("10.244.1.0/24".parse().unwrap()),
        backend: backends::profile("vxlan"),
        encapsulation: Some(types::Encapsulation::udp(8472)),
        vni: Some(1),
        mtu: Some(1450),
        nftables: true,
        forward: true,
    };
    let mut facts = Facts { network: Fact::Known(network), ..Facts::default() };
    facts.host.sysctls = Fact::Known(Sysctls { ip_forward: Some(ip_forward), ..sysctls("lo") });
    facts
}

#[test]
fn vni_is_that_of_either_family() {
    let text = r#"{"VNI":7,"VtepMAC":"02:00:00:00:00:01"}"#;
    let data = subnet_lease::RawJson::parse(text).unwrap();
    assert_eq!((vni(Some(&data), None), vni(None, Some(&data))), (Some(7), Some(7)));
}

#[test]
fn each_finding_is_logged_and_counted_once() {
    let health = Health::new();
    health.clear(Condition::Start);
    let (mut checks, _keep) = checks_of(&health);
    checks.report(std::time::Instant::now(), &facts(0));
    let line =
        |value: u8| format!("flannel_findings{{check=\"ip-forward\",severity=\"broken\"}} {value}");
    assert!(health.metrics().lines().any(|have| have == line(1)), "{}", health.metrics());
    // A check that could not run has no number of findings.
    for check in doctor::table::checks() {
        let metrics = health.metrics();
        let is_unknown =
            metrics.contains(&format!("flannel_checks_unknown{{check=\"{}\"}} 1", check.id));
        let is_counted = metrics.contains(&format!("flannel_findings{{check=\"{}\",", check.id));
        assert!(is_unknown != is_counted, "{}", check.id);
    }
    let metrics = health.metrics();
    let age: Option<u64> = metrics
        .lines()
        .find_map(|line| line.strip_prefix("flannel_doctor_round_age_seconds "))
        .and_then(|age| age.parse().ok());
    // A busy machine can pause the test for seconds after the round.
    assert!(age.is_some_and(|age| age < 60), "{metrics}");
    assert_eq!(health.status()["findings"][0]["check"], "ip-forward");
    assert!(health.ready(), "findings never change readiness");
    checks.report(std::time::Instant::now(), &facts(1));
    assert!(health.metrics().lines().any(|have| have == line(0)));
    assert_eq!(health.status()["findings"], serde_json::json!([]));
}

#[test]
fn checks_logged_by_other_tasks_are_in_the_table() {
    for id in LOGGED_BY_THEIR_TASKS {
        assert!(doctor::table::checks().any(|check| check.id == id), "{id}");
    }
}

#[tokio::test]
async fn waiting_daemon_reports_what_it_waits_for() {
    let health = Health::new();
    health.fail(
        Condition::Store,
        types::Problem::in_words("etcd at http://192.0.2.1:2379: Connection refused"),
    );
    health.fail(Condition::Underlay, types::Problem::in_words("no interface named eth7"));
    let (mut checks, _keep) = checks_of(&health);
    checks.pass().await;
    let report = health.report().unwrap();
    let causes: Vec<&str> = report.causes().map(|finding| finding.check.as_str()).collect();
    assert_eq!(causes, ["no-interface"], "without the interface there is no way to the store");
    assert!(
        report.findings.iter().any(|finding| finding.check == "store-unreachable"),
        "{:?}",
        report.findings
    );
    assert!(report.unknown.iter().any(|unknown| unknown.check == "mtu"), "{:?}", report.unknown);
    assert!(report.findings.iter().all(|finding| finding.since.is_some()));
}

/// A pass serves every client that asked before it, whatever woke it.
#[tokio::test]
async fn pass_for_a_client_lists_old_rules_again() {
    let health = Health::new();
    let (mut checks, _keep) = checks_of(&health);
    let minute = Duration::from_secs(60);
    tokio::time::pause();
    for (is_asked, age, kept) in
        [(false, minute, true), (true, minute, false), (true, Duration::ZERO, true)]
    {
        checks.firewalls.1 = Some(Instant::now());
        tokio::time::advance(age).await;
        let client = async {
            if is_asked {
                health.fresh_report(minute).await;
            }
        };
        // The client asks first.
        tokio::join!(client, checks.pass());
        assert_eq!(checks.firewalls.1.is_some(), kept, "{is_asked} {age:?}");
    }
}
