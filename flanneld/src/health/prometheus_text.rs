//! Converts the metrics to Prometheus' text format 0.0.4 for clients that do not request OpenMetrics.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

/// In the Prometheus format, the declared name of a counter includes `_total`. An info metric becomes a gauge whose
/// declared name includes `_info`. There are no `UNIT` and `EOF` lines.
pub(crate) fn from_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            push(&mut out, &[line]);
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            // The type, on the next line, decides the name.
            (Some("HELP"), Some(name), text) => help = Some((name, text.unwrap_or_default())),
            (Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                if let Some((_, text)) = help.take().filter(|(of, _)| *of == name) {
                    push(&mut out, &["# HELP ", name, suffix, " ", text]);
                }
                push(&mut out, &["# TYPE ", name, suffix, " ", kind]);
            }
            _ => {}
        }
    }
    out
}

fn push(out: &mut String, parts: &[&str]) {
    out.extend(parts.iter().copied());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_counters_and_infos_have_their_suffix() {
        let text = "# HELP flannel_build Version.\n# TYPE flannel_build info\nflannel_build_info{version=\"v\"} 1\n\
            # HELP flannel_peers Peers of \"this\" node.\n# TYPE flannel_peers gauge\n# UNIT flannel_peers nodes\nflannel_peers 7\n\
            # HELP flannel_writes Writes.\n# TYPE flannel_writes counter\nflannel_writes_total{kind=\"# HELP a b\"} 2\n# EOF\n";
        assert_eq!(
            from_openmetrics(text),
            "# HELP flannel_build_info Version.\n# TYPE flannel_build_info gauge\nflannel_build_info{version=\"v\"} 1\n\
            # HELP flannel_peers Peers of \"this\" node.\n# TYPE flannel_peers gauge\nflannel_peers 7\n\
            # HELP flannel_writes_total Writes.\n# TYPE flannel_writes_total counter\nflannel_writes_total{kind=\"# HELP a b\"} 2\n"
        );
    }
}
