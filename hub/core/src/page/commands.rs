//! The lines of kubectl that give what a page shows.
//!
//! Always holds: a line has no text of a node in it but one that a shell, grep and a terminal take as it is
//! (`plain::is_simple`). So a line can be copied without reading it. Left to others: the numbers.

use crate::plain::is_simple;
use crate::state::fleet::{By, Filter, STATES};

/// The path of a property in kubectl's notation; `None`: no path has it.
fn path(by: By) -> Option<&'static str> {
    const fn condition(by: By) -> &'static str {
        match by {
            By::State => {
                r#"{.status.conditions[?(@.type=="Ready")].status}{": "}{.status.conditions[?(@.type=="Ready")].reason}"#
            }
            By::Config => {
                r#"{.status.conditions[?(@.type=="ConfigOK")].status}{": "}{.status.conditions[?(@.type=="ConfigOK")].reason}"#
            }
            By::System => {
                r#"{.status.conditions[?(@.type=="SystemOK")].status}{": "}{.status.conditions[?(@.type=="SystemOK")].reason}"#
            }
            _ => {
                r#"{.status.conditions[?(@.type=="ImageOK")].status}{": "}{.status.conditions[?(@.type=="ImageOK")].reason}"#
            }
        }
    }
    Some(match by {
        By::State | By::Config | By::System | By::Image => condition(by),
        By::Agent => "{.status.nodeInfo.kubeletVersion}",
        By::Os => "{.status.nodeInfo.osImage}",
        By::Watchdog => r"{.metadata.labels.kedge\.dev/watchdog}",
        By::Trouble => r#"{range .status.conditions[?(@.status=="True")]}{.type}{"\n"}{end}"#,
        By::Field => return None,
    })
}

/// Counts the nodes by each value of a property.
pub(super) fn count(by: By) -> Option<String> {
    let path = path(by)?;
    let end = if by == By::Trouble { "" } else { r#"{"\n"}"# };
    let rest = if by == By::Config { " | sed 's/ (UID: [^)]*)//'" } else { "" };
    Some(format!(
        "kubectl get nodes -o jsonpath='{{range .items[*]}}{path}{end}{{end}}'{rest} | sort | uniq -c | sort -rn"
    ))
}

/// Lists the nodes with one value of a property; `None`: the value must not stand in a shell, or no such line
/// is exact.
pub(super) fn find(filter: &Filter) -> Option<String> {
    let Filter::Fact(by, value) = filter else { return None };
    let (path, wanted) = match by {
        By::State => {
            let status = match () {
                () if value == STATES[0] => "True",
                () if value == STATES[1] => "False",
                () => return None,
            };
            (r#"{.status.conditions[?(@.type=="Ready")].status}"#.to_owned(), status.to_owned())
        }
        By::Watchdog if is_simple(value) => {
            return Some(format!("kubectl get nodes -l 'kedge.dev/watchdog={value}'"));
        }
        By::Trouble if is_simple(value) => {
            (format!(r#"{{.status.conditions[?(@.type=="{value}")].status}}"#), "True".to_owned())
        }
        // its reason may have been cut, or had an identifier
        By::Config | By::System | By::Image => {
            let status = value.split(':').next().filter(|status| is_simple(status))?;
            let whole = path(*by)?;
            let path = whole.split(r#"{": "}"#).next()?;
            (path.to_owned(), status.to_owned())
        }
        By::Agent | By::Os if is_simple(value) => (path(*by)?.to_owned(), value.clone()),
        _ => return None,
    };
    let wanted = wanted.replace('.', r"\.");
    Some(format!(
        r#"kubectl get nodes -o jsonpath='{{range .items[*]}}{{.metadata.name}}{{" = "}}{path}{{"\n"}}{{end}}' | grep '^[^ ]* = {wanted}$'"#
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_value_is_in_no_line() {
        for by in By::ALL {
            for value in ["'; rm -rf /", "$(x)", "a\nb", "`x`", "\u{202e}x", "a.*", "x\\"] {
                let line = find(&Filter::Fact(by, value.to_owned())).unwrap_or_default();
                assert!(!line.contains(value), "{line}");
            }
            let line = count(by).unwrap_or_default();
            assert_eq!(line.matches('\'').count() % 2, 0, "{line}");
        }
    }

    #[test]
    fn line_lists_the_nodes_with_a_value() {
        let line = find(&Filter::Fact(By::Agent, "v1.36.0".to_owned())).unwrap();
        assert_eq!(
            line,
            r#"kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name}{" = "}{.status.nodeInfo.kubeletVersion}{"\n"}{end}' | grep '^[^ ]* = v1\.36\.0$'"#
        );
    }
}
