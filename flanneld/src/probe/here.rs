//! The path to a pod of this node, over the bridge. Without side effects.

use super::end::End;
use super::seen::Local;
use super::steps::answer;
use super::words::{questions, route as shown};
use netstate::host::lookup::{Fate, Hop, Neighbour};
use netstate::object::route::RouteKind;
use node_api::probe::{Next, Outcome, QuestionKind, Step, StepName};
use probing::view::Tally;

/// RTN_LOCAL of linux/rtnetlink.h: an address of this host.
const LOCAL: RouteKind = RouteKind::Other(2);

/// The hop to the pod if the kernel sends packets for it directly to a bridge with an address of the subnet.
pub(super) fn bridged(local: &Local) -> Option<&Hop> {
    match &local.fate {
        Ok(Fate::Sent(hop))
            if hop.route.kind != LOCAL
                && hop.route.via.is_none()
                && local.subnet.contains(&hop.route.net) =>
        {
            Some(hop)
        }
        _ => None,
    }
}

/// True if the pod's address is one of this node itself.
fn is_own(local: &Local) -> bool {
    matches!(&local.fate, Ok(Fate::Sent(hop)) if hop.route.kind == LOCAL)
}

/// Only the first step if the kernel does not send packets for the pod to a bridge.
pub(super) fn steps(local: &Local) -> Vec<Step> {
    let step = |name, (outcome, text)| Step { name, outcome, text, questions: Vec::new() };
    if is_own(local) {
        let text = format!("{} is an address of this node itself", local.pod);
        return vec![step(StepName::Bridge, (Outcome::Ok, text))];
    }
    let mut steps = vec![step(StepName::Bridge, bridge(local))];
    let Some(hop) = bridged(local) else {
        return steps;
    };
    let neighbour = neighbour(local, hop);
    let absent = neighbour.0 == Outcome::Failed;
    steps.push(step(StepName::Neighbour, neighbour));
    let (found, tally) = match &local.pinged {
        _ if absent => ((Outcome::NotAsked, "not reached".to_owned()), Tally::default()),
        None => ((Outcome::NotAsked, "not asked".to_owned()), Tally::default()),
        Some(Err(why)) => ((Outcome::NotAsked, format!("not asked: {why}")), Tally::default()),
        Some(Ok(tally)) => (answer(local.pod, *tally), *tally),
    };
    steps.push(Step {
        questions: questions(&[(QuestionKind::Ping, tally)]),
        ..step(StepName::Pod, found)
    });
    steps
}

/// Evaluates whether the kernel sends packets for the pod to a bridge with an address of the subnet.
fn bridge(local: &Local) -> (Outcome, String) {
    let (pod, subnet) = (local.pod, local.subnet);
    match (&local.fate, bridged(local)) {
        (Err(why), _) => (Outcome::NotAsked, format!("not known: {why}")),
        (_, Some(hop)) => {
            let source =
                hop.route.source.map(|source| format!(" from {source}")).unwrap_or_default();
            (Outcome::Ok, format!("{} dev {}{source}", hop.route.net, hop.dev))
        }
        (Ok(Fate::Sent(hop)), None) => (
            Outcome::Failed,
            format!("no bridge has {subnet}: packets to {pod} leave by {}", shown(hop)),
        ),
        (Ok(Fate::Dropped(hop)), None) => {
            let by =
                hop.as_ref().map(|hop| format!(" by the route {}", shown(hop))).unwrap_or_default();
            (Outcome::Failed, format!("no bridge has {subnet}: packets to {pod} are dropped{by}"))
        }
        (Ok(Fate::NoRoute), None) => {
            (Outcome::Failed, format!("no bridge has {subnet}: no route leads to {pod}"))
        }
    }
}

/// Evaluates whether the kernel knows the pod's hardware address.
fn neighbour(local: &Local, hop: &Hop) -> (Outcome, String) {
    let pod = local.pod;
    match &local.neighbour {
        Err(why) => (Outcome::NotAsked, format!("not known: {why}")),
        Ok(Neighbour::Known(mac)) => (Outcome::Ok, format!("{pod} is {mac} on {}", hop.dev)),
        Ok(Neighbour::Silent) => {
            (Outcome::Failed, format!("no host on {} replies to ARP or NDP for {pod}", hop.dev))
        }
        Ok(Neighbour::Absent) => {
            (Outcome::NotAsked, format!("the kernel has not resolved {pod} on {} yet", hop.dev))
        }
    }
}

pub(super) fn end(local: &Local, steps: &[Step]) -> End {
    let at = steps.iter().find(|step| step.outcome == Outcome::Failed).map(|step| step.name);
    let is_ok = |name| steps.iter().any(|step| step.name == name && step.outcome == Outcome::Ok);
    let pod = local.pod;
    let here = |command: String| Next { on: None, command };
    let (sentence, next) = match at {
        Some(StepName::Bridge) => {
            let text = format!(
                "The path breaks here: no bridge of this node has {}, so no pod runs on this node, or the bridge of the pods lost its address.",
                local.subnet
            );
            (text, vec![here("ip address".to_owned()), here("flannelctl doctor".to_owned())])
        }
        Some(_) => {
            let dev =
                bridged(local).map(|hop| doctor::shell::word(hop.dev.as_str())).unwrap_or_default();
            let next = vec![
                here(format!("ip neighbour show dev {dev}")),
                here(format!("bridge link show master {dev}")),
            ];
            (format!("The path breaks on this node's bridge: the pod {pod} does not exist."), next)
        }
        None if is_own(local) => (format!("{pod} is this node's own address."), Vec::new()),
        None if is_ok(StepName::Pod) => {
            (format!("The path works: packets reach the pod {pod} on this node."), Vec::new())
        }
        None if is_ok(StepName::Neighbour) => (
            format!("The pod {pod} exists and does not reply to ping, which is not a fault."),
            Vec::new(),
        ),
        None => (
            format!("The probe found no fault, as far as it could test the path to {pod}."),
            Vec::new(),
        ),
    };
    End { at, sentence, next }
}
