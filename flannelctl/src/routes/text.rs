//! Renders the text of `flannelctl routes` as a pure function of the document. Objects that are not in sync come first.

use std::collections::{BTreeMap, BTreeSet};

use node_api::Rules;
use node_api::routes::{Foreign, Holder, Object, ObjectKind, ObjectState, Routes};
use types::printable;

use crate::columns::{Cell, plain, table};
use terminal::screen::{Screen, Style};

const HEADINGS: [&str; 4] = ["KIND", "OBJECT", "FOR", "STATE"];
const FOREIGN: [&str; 3] = ["KIND", "NOT FLANNEL'S", "MADE BY"];
/// If more objects are in sync, the text has only their number.
const MAX_LISTED: usize = 30;
/// Listed reasons for refusals by the kernel.
const MAX_REASONS: usize = 5;

pub(super) fn text(routes: &Routes, all: bool, screen: Screen) -> String {
    let (well, wrong): (Vec<&Object>, Vec<&Object>) =
        routes.objects.iter().partition(|object| object.state == ObjectState::InSync);
    let counted = !all && well.len() > MAX_LISTED;
    let mut out = Vec::new();
    let mut rows: Vec<Vec<Cell>> = wrong.iter().map(|object| exception(object, screen)).collect();
    if counted {
        rows.extend(counts(&well, if wrong.is_empty() { "" } else { " more" }));
    } else {
        rows.extend(well.iter().map(|object| {
            vec![
                plain(word(object.kind)),
                plain(&object.text),
                plain(holder(object)),
                plain("in sync"),
            ]
        }));
    }
    if !rows.is_empty() {
        out.push(table(&HEADINGS, &rows, screen));
    }
    out.extend(reasons(&wrong));
    out.extend(foreign(&routes.foreign, all, screen));
    out.extend(routes.rules.as_ref().map(|rules| format!("rules: {}", rules_text(rules))));
    out.push(summary(routes, screen));
    out.join("\n\n")
}

/// An object that is not in sync. If the kernel has a different one instead, the cells show it too.
fn exception(object: &Object, screen: Screen) -> Vec<Cell> {
    let sign = if screen.has_signs() { "✗ " } else { "" };
    let state = match object.state {
        ObjectState::InSync => "in sync",
        ObjectState::Missing => "missing",
        ObjectState::Different => "different",
        ObjectState::Refused => "refused",
    };
    let found = object.found.as_ref().map(|found| format!("there is {found}")).unwrap_or_default();
    vec![
        plain(word(object.kind)),
        plain(&object.text),
        plain(holder(object)),
        (format!("{sign}{state}"), Some(Style::Bad)),
        faint(found),
    ]
}

/// Why the kernel refused objects. These come below the table, because they are long and often apply to many
/// objects.
fn reasons(wrong: &[&Object]) -> Option<String> {
    let all: BTreeSet<&str> = wrong.iter().filter_map(|object| object.why.as_deref()).collect();
    let mut lines: Vec<String> = all
        .iter()
        .take(MAX_REASONS)
        .map(|why| format!("refused: {}", printable::line(why)))
        .collect();
    if all.len() > MAX_REASONS {
        lines
            .push(format!("and for {} more reasons (-o json lists them)", all.len() - MAX_REASONS));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The number of objects in sync, by kind.
fn counts(well: &[&Object], more: &str) -> Vec<Vec<Cell>> {
    let mut counts: BTreeMap<ObjectKind, usize> = BTreeMap::new();
    for object in well {
        *counts.entry(object.kind).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(kind, count)| {
            vec![plain(word(kind)), faint(format!("{count}{more}")), plain(""), plain("in sync")]
        })
        .collect()
}

/// Objects that are not flannel's. Without `all`, only the number of routes to this node's own pods.
fn foreign(objects: &[Foreign], all: bool, screen: Screen) -> Option<String> {
    let (harmless, harmful): (Vec<&Foreign>, Vec<&Foreign>) =
        objects.iter().partition(|other| other.conflicts_with.is_empty());
    let (own, others): (Vec<&Foreign>, Vec<&Foreign>) =
        harmless.into_iter().partition(|other| other.own_subnet && !all);
    let sign = if screen.has_signs() { "✗ " } else { "" };
    let impact = |other: &Foreign| {
        (format!("{sign}conflicts with {}", other.conflicts_with.join(", ")), Some(Style::Bad))
    };
    let row = |other: &Foreign| vec![plain(word(other.kind)), plain(&other.text), plain(&other.by)];
    let harmful =
        harmful.iter().map(|other| row(other).into_iter().chain([impact(other)]).collect());
    let rows: Vec<Vec<Cell>> = harmful.chain(others.iter().map(|other| row(other))).collect();
    let own = (!own.is_empty()).then(|| {
        format!(
            "{} more inside this node's own subnet, such as routes to its pods (--all)",
            routes(own.len())
        )
    });
    let table = (!rows.is_empty()).then(|| table(&FOREIGN, &rows, screen));
    let parts: Vec<String> = table.into_iter().chain(own).collect();
    (!parts.is_empty()).then(|| parts.join("\n"))
}

fn routes(count: usize) -> String {
    format!("{count} route{}", if count == 1 { "" } else { "s" })
}

fn rules_text(rules: &Rules) -> String {
    let what = if rules.what.is_empty() { "none wanted".to_owned() } else { rules.what.join(", ") };
    let state = if rules.in_place { "in place".into() } else { printable::value(&rules.trouble) };
    format!("{}: {what}; {state}", rules.with)
}

/// The last line: the number of objects in sync, and the objects that are not.
fn summary(routes: &Routes, screen: Screen) -> String {
    let count =
        |state: ObjectState| routes.objects.iter().filter(|object| object.state == state).count();
    let all = routes.objects.len();
    let objects = format!("{all} object{}", if all == 1 { "" } else { "s" });
    let mut wrong: Vec<String> = [
        (ObjectState::Missing, "missing"),
        (ObjectState::Different, "different"),
        (ObjectState::Refused, "refused"),
    ]
    .into_iter()
    .map(|(state, word)| (count(state), word))
    .filter(|(count, _)| *count > 0)
    .map(|(count, word)| format!("{count} {word}"))
    .collect();
    let right = match (wrong.is_empty(), all) {
        (true, 0) => "no objects are needed in the kernel".to_owned(),
        (true, 1) => format!("{objects}, in sync"),
        (true, _) => format!("{objects}, all in sync"),
        (false, _) => {
            wrong.insert(0, format!("{} in sync", count(ObjectState::InSync)));
            format!("{objects}: {}", wrong.join(", "))
        }
    };
    let mut parts = vec![right];
    match routes.foreign.iter().filter(|other| !other.conflicts_with.is_empty()).count() {
        0 => {}
        1 => parts.push("one foreign object conflicts".to_owned()),
        count => parts.push(format!("{count} foreign objects conflict")),
    }
    if routes.rules.as_ref().is_some_and(|rules| !rules.in_place) {
        parts.push("the traffic rules are not in place".to_owned());
    }
    let style = if routes.is_broken() { Style::Bad } else { Style::Good };
    screen.styled(style, parts.join("; "))
}

fn holder(object: &Object) -> String {
    object.holder.as_ref().map_or_else(|| "this node".to_owned(), Holder::title)
}

fn word(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Link => "link",
        ObjectKind::Address => "address",
        ObjectKind::Fdb => "FDB",
        ObjectKind::Neighbour => "neighbour",
        ObjectKind::WireguardPeer => "WireGuard peer",
        ObjectKind::AllowedIp => "allowed IP",
        ObjectKind::Route => "route",
        ObjectKind::Blackhole => "blackhole",
    }
}

fn faint(text: String) -> Cell {
    (text, Some(Style::Faint))
}

#[cfg(test)]
mod tests;
