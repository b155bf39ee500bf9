//! Renders tables in which each column is as wide as its longest cell.

use types::printable;

use terminal::screen::{Screen, Style};

/// Between two columns, and before a note on its own line.
const GAP: &str = "  ";

/// A table cell: a text with an optional style.
pub(crate) type Cell = (String, Option<Style>);

/// A cell without a style.
pub(crate) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), None)
}

/// A row may have a note as an additional last cell, which has no heading.
pub(crate) fn table(headings: &[&str], rows: &[Vec<Cell>], screen: Screen) -> String {
    fitted(headings, &[], rows, screen)
}

/// Like [`table`]. On a narrow terminal, `spare` columns are left out in their order until the others fit. An
/// overlong note gets its own line.
pub(crate) fn fitted(
    headings: &[&str],
    spare: &[&str],
    rows: &[Vec<Cell>],
    screen: Screen,
) -> String {
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| printed(headings, row)).collect();
    let widths: Vec<usize> = (0..)
        .zip(headings)
        .map(|(column, name)| longest(&rows, column).max(length(name)))
        .collect();
    let shown = fitting(headings, &widths, spare, screen.width());
    let heading: Vec<Cell> =
        headings.iter().map(|name| ((*name).to_owned(), Some(Style::Strong))).collect();
    std::iter::once(&heading)
        .chain(&rows)
        .map(|row| line(row, &shown, &widths, screen))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Escapes the control characters in a row.
fn printed(headings: &[&str], row: &[Cell]) -> Vec<Cell> {
    let printed = |(column, (text, style)): (usize, &Cell)| {
        let text = match headings.get(column) {
            Some(_) => printable::value(text),
            None => printable::line(text),
        };
        (text.into_owned(), *style)
    };
    row.iter().enumerate().map(printed).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// In characters.
fn longest(rows: &[Vec<Cell>], column: usize) -> usize {
    rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| length(text)).max().unwrap_or(0)
}

/// The indexes of the columns that fit into `width`, from left to right.
fn fitting(
    headings: &[&str],
    widths: &[usize],
    spare: &[&str],
    width: Option<usize>,
) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..headings.len()).collect();
    let needed = |shown: &[usize]| {
        let cells = shown.iter().filter_map(|column| widths.get(*column));
        cells.sum::<usize>() + GAP.len() * shown.len().saturating_sub(1)
    };
    for name in spare {
        if width.is_none_or(|width| needed(&shown) <= width) {
            break;
        }
        shown.retain(|column| headings.get(*column) != Some(name));
    }
    shown
}

/// One line, or several if the note does not fit.
fn line(cells: &[Cell], shown: &[usize], widths: &[usize], screen: Screen) -> String {
    let (mut out, mut used) = (String::new(), 0);
    let filled: Vec<(usize, &Cell)> =
        shown.iter().filter_map(|column| Some((*column, cells.get(*column)?))).collect();
    let note = cells.get(widths.len()).filter(|(text, _)| !text.is_empty());
    let last = match note {
        Some(_) => filled.len(),
        None => {
            filled.iter().rposition(|(_, (text, _))| !text.is_empty()).map_or(0, |last| last + 1)
        }
    };
    for (place, (column, (text, style))) in filled.iter().take(last).enumerate() {
        if place > 0 {
            out.push_str(GAP);
            used += GAP.len();
        }
        out.push_str(&style.map_or_else(|| text.clone(), |style| screen.styled(style, text)));
        let width = widths.get(*column).copied().unwrap_or(0);
        let padding = width.saturating_sub(length(text));
        if place + 1 < last {
            out.push_str(&" ".repeat(padding));
        }
        used += width.max(length(text));
        if place + 1 == last
            && let Some((note, style)) = note
        {
            let styled = |text: &str| {
                style.map_or_else(|| text.to_owned(), |style| screen.styled(style, text))
            };
            let needed = used + GAP.len() + length(note);
            if screen.width().is_none_or(|width| needed <= width) {
                out.push_str(&" ".repeat(padding));
                out.push_str(GAP);
                out.push_str(&styled(note));
            } else {
                for part in screen.wrap(note, GAP.len()) {
                    out.push('\n');
                    out.push_str(GAP);
                    out.push_str(&styled(&part));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_contents() {
        let rows = [
            vec![plain("a"), plain(""), plain("1")],
            vec![plain("long\u{1b}"), plain("x"), plain(""), plain("a note")],
            vec![plain("b"), plain(""), plain("")],
        ];
        let text = table(&["NAME", "B", "COUNT"], &rows, Screen::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME        B  COUNT");
        assert_eq!(lines[1], "a              1");
        assert_eq!(lines[2], "long\\u{1b}  x         a note");
        assert_eq!(lines[3], "b");
    }

    #[test]
    fn narrow_terminal_gets_fewer_columns_and_notes_on_lines_of_their_own() {
        let rows = [
            vec![plain("node-1"), plain("10.244.1.0/24"), plain("well")],
            vec![
                plain("node-2"),
                plain("10.244.2.0/24"),
                plain("cut-off"),
                plain("for three minutes"),
            ],
        ];
        let shown = |width| {
            let screen = Screen::of_width(width);
            fitted(&["NODE", "SUBNET", "STATE"], &["SUBNET", "STATE"], &rows, screen)
        };
        assert_eq!(
            shown(30),
            "NODE    SUBNET         STATE\nnode-1  10.244.1.0/24  well\nnode-2  10.244.2.0/24  cut-off\n  for three minutes"
        );
        assert_eq!(shown(29), "NODE    STATE\nnode-1  well\nnode-2  cut-off\n  for three minutes");
        assert_eq!(shown(34).lines().last(), Some("  for three minutes"), "{}", shown(34));
        assert_eq!(
            shown(60).lines().last(),
            Some("node-2  10.244.2.0/24  cut-off  for three minutes")
        );
        assert_eq!(shown(3).lines().next(), Some("NODE"));
    }
}
