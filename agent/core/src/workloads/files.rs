//! The small files that a pod's containers find in `/etc`: hosts, resolv.conf, hostname.
//!
//! Always holds: the same bytes as a kubelet with containerd writes, so that programs which read them meet
//! nothing new. Leaves to others: the machine's own files, which the caller passes in.

use crate::pods::Dns;
use std::fmt::Write as _;

/// The limits of resolvers, which the kubelet keeps.
const NAMESERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_BYTES: usize = 2048;

const MANAGED: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// `/etc/hosts`. `machine` is the machine's own, for a pod on its network.
#[must_use]
pub fn hosts(
    machine: Option<&str>,
    addresses: &[String],
    hostname: &str,
    aliases: &[(String, Vec<String>)],
) -> String {
    let mut text = match machine {
        Some(machine) => format!("# Kubernetes-managed hosts file (host network).\n{machine}"),
        None => {
            let own = addresses.iter().map(|address| format!("{address}\t{hostname}\n"));
            MANAGED.to_owned() + &own.collect::<String>()
        }
    };
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for (address, names) in aliases {
            let _ = writeln!(text, "{address}\t{}", names.join("\t"));
        }
    }
    text
}

/// The node's settings for names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolver {
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// The machine's resolv.conf.
    pub machine: String,
}

#[derive(Debug, Default)]
struct Settings {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

/// `/etc/resolv.conf` by `dnsPolicy` and `dnsConfig`. Without a cluster DNS, `ClusterFirst` uses the
/// machine's, as in the kubelet.
#[must_use]
pub fn resolv_conf(dns: &Dns, namespace: &str, host_network: bool, resolver: &Resolver) -> String {
    let wants_cluster = match dns.policy.as_str() {
        "ClusterFirst" => !host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let machine = parse(&resolver.machine);
    let mut settings = match dns.policy.as_str() {
        "None" => Settings::default(),
        _ if wants_cluster && !resolver.cluster_dns.is_empty() => cluster(namespace, machine, resolver),
        _ => machine,
    };
    append_new(&mut settings.nameservers, &dns.nameservers);
    append_new(&mut settings.searches, &dns.searches);
    for (name, value) in &dns.options {
        let option = value.as_ref().map_or_else(|| name.clone(), |value| format!("{name}:{value}"));
        settings.options.retain(|other| other.split(':').next() != Some(name.as_str()));
        settings.options.push(option);
    }
    settings.text()
}

fn cluster(namespace: &str, machine: Settings, resolver: &Resolver) -> Settings {
    let domain = &resolver.cluster_domain;
    let mut searches = match domain.is_empty() {
        true => Vec::new(),
        false => vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()],
    };
    append_new(&mut searches, &machine.searches);
    Settings { nameservers: resolver.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
}

fn append_new(list: &mut Vec<String>, more: &[String]) {
    for one in more {
        if !list.contains(one) {
            list.push(one.clone());
        }
    }
}

/// resolv.conf(5): the last `search` wins, options add up.
fn parse(text: &str) -> Settings {
    let mut settings = Settings::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let rest = |words: std::str::SplitWhitespace<'_>| words.map(str::to_owned).collect::<Vec<_>>();
        match words.next() {
            Some("nameserver") => settings.nameservers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                settings.searches = rest(words).into_iter().filter(|name| name != ".").collect()
            }
            Some("options") => settings.options.extend(rest(words)),
            _ => {}
        }
    }
    settings
}

impl Settings {
    fn text(mut self) -> String {
        self.nameservers.truncate(NAMESERVERS);
        self.searches.truncate(SEARCHES);
        while self.searches.join(" ").len() > SEARCH_BYTES {
            self.searches.pop();
        }
        let mut text = String::new();
        if !self.searches.is_empty() {
            let _ = writeln!(text, "search {}", self.searches.join(" "));
        }
        for nameserver in &self.nameservers {
            let _ = writeln!(text, "nameserver {nameserver}");
        }
        if !self.options.is_empty() {
            let _ = writeln!(text, "options {}", self.options.join(" "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_is_the_kubelet_one() {
        let aliases = [("10.0.0.1".to_owned(), vec!["a".to_owned(), "b".to_owned()])];
        let own = hosts(None, &["10.1.1.2".into(), "fd00::2".into()], "web-0", &aliases);
        assert!(own.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(own.ends_with(
            "ip6-allrouters\n10.1.1.2\tweb-0\nfd00::2\tweb-0\n\n# Entries added by HostAliases.\n10.0.0.1\ta\tb\n"
        ));
        let host = hosts(Some("127.0.0.1 localhost\n"), &["1.2.3.4".into()], "n", &[]);
        assert_eq!(host, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }

    #[track_caller]
    fn check(
        policy: &str,
        host_network: bool,
        cluster_dns: &[&str],
        change: impl Fn(&mut Dns),
        expect: &str,
    ) {
        let resolver = Resolver {
            cluster_dns: cluster_dns.iter().map(|&server| server.to_owned()).collect(),
            cluster_domain: "cluster.local".into(),
            machine: "# comment\nsearch old\nsearch lan .\nnameserver 192.168.1.1\noptions timeout:1\n"
                .into(),
        };
        let mut dns = Dns { policy: policy.into(), ..Dns::default() };
        change(&mut dns);
        assert_eq!(resolv_conf(&dns, "prod", host_network, &resolver), expect);
    }

    #[test]
    fn each_dns_policy_gives_its_file() {
        let machine = "search lan\nnameserver 192.168.1.1\noptions timeout:1\n";
        let cluster = "search prod.svc.cluster.local svc.cluster.local cluster.local lan\nnameserver 10.0.0.10\noptions ndots:5\n";
        let same = |_: &mut Dns| {};
        check("Default", false, &["10.0.0.10"], same, machine);
        check("ClusterFirst", false, &["10.0.0.10"], same, cluster);
        check("ClusterFirst", true, &["10.0.0.10"], same, machine);
        check("ClusterFirstWithHostNet", true, &["10.0.0.10"], same, cluster);
        check("ClusterFirst", false, &[], same, machine);
        check("None", false, &["10.0.0.10"], same, "");
    }

    #[test]
    fn dns_config_adds_and_overrides() {
        let change = |dns: &mut Dns| {
            dns.nameservers = ["192.168.1.1", "8.8.8.8", "9.9.9.9", "1.1.1.1"].map(String::from).to_vec();
            dns.searches = ["lan", "corp"].map(String::from).to_vec();
            dns.options = vec![("timeout".into(), Some("3".into())), ("edns0".into(), None)];
        };
        let expect = "search lan corp\nnameserver 192.168.1.1\nnameserver 8.8.8.8\nnameserver 9.9.9.9\noptions timeout:3 edns0\n";
        check("Default", false, &[], change, expect);
    }

    #[test]
    fn searches_over_the_limits_are_cut() {
        let many = |dns: &mut Dns| {
            dns.searches = (0..40).map(|number| format!("{number}.{}", "x".repeat(100))).collect()
        };
        let resolver = Resolver::default();
        let mut dns = Dns { policy: "None".into(), ..Dns::default() };
        many(&mut dns);
        let text = resolv_conf(&dns, "n", false, &resolver);
        assert!(
            text.len() <= SEARCH_BYTES + "search \n".len() && text.split(' ').count() > 10,
            "{}",
            text.len()
        );
    }
}
