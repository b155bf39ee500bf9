//! Renders the text of `flannelctl probe` as a pure function of the document.

use node_api::Probe;
use node_api::probe::{Next, Outcome, Step, StepName};
use types::printable;

use terminal::screen::{Screen, Style};

pub(super) fn text(probe: &Probe, screen: Screen) -> String {
    let width = probe.steps.iter().map(|step| step.name.words().chars().count()).max().unwrap_or(0);
    let steps = probe.steps.iter().map(|step| line(step, width, screen));
    std::iter::once(heading(probe, screen))
        .chain(steps)
        .chain([end(probe, screen)])
        .collect::<Vec<_>>()
        .join("\n")
}

/// A step before the next ones are known.
pub(super) fn early(step: &Step, screen: Screen) -> String {
    let words = StepName::ALL.iter().map(|name| name.words().len());
    line(step, words.max().unwrap_or(0), screen)
}

/// The end of the path, and the commands to run next.
pub(super) fn end(probe: &Probe, screen: Screen) -> String {
    let mut lines =
        vec![screen.styled(
            if probe.ends_at.is_some() { Style::Bad } else { Style::Good },
            &probe.sentence,
        )];
    lines.extend(next(&probe.next, screen));
    lines.join("\n")
}

/// For example `node-1 → 10.244.3.7, a pod of node-3`.
fn heading(probe: &Probe, screen: Screen) -> String {
    let target = &probe.target;
    let address = target.address.map(|address| address.to_string()).unwrap_or_default();
    let name = target.node.as_deref().filter(|name| !name.is_empty()).unwrap_or(&address);
    let name = printable::value(name);
    let target_text = match (target.pod, target.subnet) {
        (Some(pod), _) if target.here => format!("{pod}, a pod of this node"),
        (Some(pod), _) => format!("{pod}, a pod of {name}"),
        (None, Some(subnet)) => format!("{name}, {subnet} at {address}"),
        (None, None) => name.into_owned(),
    };
    format!(
        "{} {} {target_text}",
        printable::value(&probe.node),
        if screen.has_signs() { "→" } else { "to" }
    )
}

fn line(step: &Step, width: usize, screen: Screen) -> String {
    let sign = if screen.has_signs() {
        match step.outcome {
            Outcome::Ok => screen.styled(Style::Good, "✓"),
            Outcome::Failed => screen.styled(Style::Bad, "✗"),
            Outcome::NotAsked => screen.styled(Style::Faint, "-"),
        }
    } else {
        let words = Outcome::ALL.iter().map(|outcome| outcome.words().len()).max().unwrap_or(0);
        format!("{:words$}", step.outcome.words())
    };
    format!("  {sign} {:width$}  {}", step.name.words(), printable::line(&step.text))
}

/// Each after the node on which to run it.
fn next(next: &[Next], screen: Screen) -> Vec<String> {
    let place = |next: &Next| {
        next.on
            .as_deref()
            .map_or_else(|| "here:".to_owned(), |node| format!("on {}:", printable::value(node)))
    };
    let width = next.iter().map(|next| place(next).chars().count()).max().unwrap_or(0);
    let mut last = None;
    let line = |next: &Next| {
        let place = place(next);
        let shown = if last.as_ref() == Some(&place) { String::new() } else { place.clone() };
        last = Some(place);
        format!("  {shown:width$}  {}", screen.styled(Style::Strong, &next.command))
    };
    next.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::probe::Target;
    use types::reachability::State;

    fn probe() -> Probe {
        let step = |name, outcome, text: &str| Step {
            name,
            outcome,
            text: text.to_owned(),
            questions: Vec::new(),
        };
        let next = |on: Option<&str>, command: &str| Next {
            on: on.map(str::to_owned),
            command: command.to_owned(),
        };
        Probe {
            schema: node_api::PROBE.to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            node: "node-1".to_owned(),
            target: Target {
                node: Some("node-3".to_owned()),
                subnet: "10.244.3.0/24".parse().ok(),
                address: "192.0.2.3".parse().ok(),
                pod: "10.244.3.7".parse().ok(),
                here: false,
            },
            state: Some(State::OverlayCut),
            steps: vec![
                step(
                    StepName::Route,
                    Outcome::Ok,
                    "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
                ),
                step(
                    StepName::Rules,
                    Outcome::Ok,
                    "no rule blocks UDP 8472; FORWARD lets 10.244.0.0/16 pass",
                ),
                step(StepName::Overlay, Outcome::Failed, "0 of 5 replied, not even to ping"),
                step(StepName::Pod, Outcome::NotAsked, "not asked: packets do not reach node-3"),
            ],
            ends_at: Some(StepName::Overlay),
            sentence:
                "The path to node-3's UDP port 8472 breaks: packets of this node do not arrive."
                    .to_owned(),
            next: vec![
                next(None, "flannelctl doctor"),
                next(Some("node-3"), "flannelctl doctor"),
                next(Some("node-3"), "tcpdump -c 5 -ni any udp port 8472 and host 192.0.2.1"),
            ],
        }
    }

    #[test]
    fn path_is_shown_step_by_step() {
        let want = "\
node-1 to 10.244.3.7, a pod of node-3
  ok        route       10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink
  ok        rules here  no rule blocks UDP 8472; FORWARD lets 10.244.0.0/16 pass
  failed    overlay     0 of 5 replied, not even to ping
  not asked pod         not asked: packets do not reach node-3
The path to node-3's UDP port 8472 breaks: packets of this node do not arrive.
  here:       flannelctl doctor
  on node-3:  flannelctl doctor
              tcpdump -c 5 -ni any udp port 8472 and host 192.0.2.1";
        assert_eq!(text(&probe(), Screen::plain()), want);
    }

    #[test]
    fn probe_target_is_shown_first() {
        let mut probe = probe();
        probe.target.pod = None;
        let first = |probe: &Probe| text(probe, Screen::plain()).lines().next().unwrap().to_owned();
        assert_eq!(first(&probe), "node-1 to node-3, 10.244.3.0/24 at 192.0.2.3");
        probe.target.node = None;
        assert_eq!(first(&probe), "node-1 to 192.0.2.3, 10.244.3.0/24 at 192.0.2.3");
        probe.target = Target { pod: "10.244.1.7".parse().ok(), here: true, ..Target::default() };
        assert_eq!(first(&probe), "node-1 to 10.244.1.7, a pod of this node");
        probe.target = Target { node: Some("n\u{1b}[2J\nx".to_owned()), ..Target::default() };
        assert!(
            !first(&probe).contains('\u{1b}') && first(&probe).ends_with('x'),
            "{:?}",
            first(&probe)
        );
    }
}
