//! An image's `USER`: a name, a number, or a pair of them, looked up in the image's own `/etc/passwd` and
//! `/etc/group`.
//!
//! Always holds: it is resolved like Docker's and containerd's. An unknown name is an error with that name; a
//! number needs no entry. Leaves to others: reading the files.

use crate::pods::Security;
use kedge_api::excerpt;

/// A user in the kernel's terms.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// Highest ID: the kernel's IDs are unsigned, but the readers of IDs in images use signed ones.
const MAX_ID: u32 = 0x7fff_ffff;

/// Most further groups: the kernel accepts 65536, and an image's files are not trustworthy.
const MAX_GROUPS: usize = 1024;

/// Resolves `user`, `user:group`; empty: root.
///
/// # Errors
/// The user or group does not exist.
pub fn resolve(text: &str, passwd: &str, group: &str) -> Result<User, String> {
    let (user_text, group_text) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    let user_text = if user_text.is_empty() { "0" } else { user_text };
    let entry = entry_of_user(user_text, passwd);
    let (uid, own_gid) = match (&entry, number(user_text)) {
        (Some(entry), _) => (entry.uid, entry.gid),
        (None, Some(uid)) => (uid, 0),
        (None, None) => {
            return Err(format!("user {:?} is not in the image's /etc/passwd", excerpt(user_text)));
        }
    };
    if let Some(group_text) = group_text {
        let gid = match (gid_of_group(group_text, group), number(group_text)) {
            (Some(gid), _) | (None, Some(gid)) => gid,
            (None, None) => {
                return Err(format!("group {:?} is not in the image's /etc/group", excerpt(group_text)));
            }
        };
        return Ok(User { uid, gid, groups: Vec::new() });
    }
    let groups = entry.map(|entry| groups_with(entry.name, own_gid, group)).unwrap_or_default();
    Ok(User { uid, gid: own_gid, groups })
}

/// The user of a container: from its context, or else from the image.
///
/// # Errors
/// The user or group does not exist; or it is root and must not be, with upstream's text.
pub fn user_of(security: &Security, image: &str, passwd: &str, group: &str) -> Result<User, String> {
    let text = security.user.map_or_else(|| image.to_owned(), |uid| uid.to_string());
    let mut user = resolve(&text, passwd, group)?;
    if security.must_not_be_root {
        let name = image.split(':').next().unwrap_or_default();
        match security.user {
            Some(0) => return Err("container's runAsUser breaks non-root policy".into()),
            Some(_) => {}
            None if !name.is_empty() && number(name).is_none() => {
                return Err(format!(
                    "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
                ));
            }
            None if user.uid == 0 => {
                return Err("container has runAsNonRoot and image will run as root".into());
            }
            None => {}
        }
    }
    user.gid = security.group.unwrap_or(user.gid);
    if security.without_groups_of_image {
        user.groups.clear();
    }
    user.groups.extend(&security.groups);
    user.groups.sort_unstable();
    user.groups.dedup();
    Ok(user)
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

fn number(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| is_plain && *id <= MAX_ID)
}

/// `name:password:uid:gid:...`, by name, or else by number.
fn entry_of_user<'a>(user: &str, passwd: &'a str) -> Option<Entry<'a>> {
    let entries = || {
        passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _) = (fields.next()?, fields.next()?);
            Some(Entry { name, uid: number(fields.next()?)?, gid: number(fields.next()?)? })
        })
    };
    entries().find(|entry| entry.name == user).or_else(|| {
        let uid = number(user)?;
        entries().find(|entry| entry.uid == uid)
    })
}

/// `name:password:gid:member,member`.
fn lines_of_groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _) = (fields.next()?, fields.next()?);
        Some((name, number(fields.next()?)?, fields.next().unwrap_or_default()))
    })
}

fn gid_of_group(name: &str, group: &str) -> Option<u32> {
    lines_of_groups(group).find(|(found, ..)| *found == name).map(|(_, gid, _)| gid)
}

fn groups_with(member: &str, own: u32, group: &str) -> Vec<u32> {
    let has = |members: &str| members.split(',').any(|found| found == member);
    let mut groups: Vec<u32> = lines_of_groups(group)
        .filter(|(_, gid, members)| *gid != own && has(members))
        .map(|(_, gid, _)| gid)
        .take(MAX_GROUPS)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:100:101::/:/bin/false\n1000:x:7:8::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:101:web\nlogs:x:4:web,other\ndisk:x:6:other\nlogs2:x:4:web\n";

    #[test]
    fn users_are_found_as_docker_finds_them() {
        let check = |text: &str, uid, gid, groups: &[u32]| {
            let expect = User { uid, gid, groups: groups.to_vec() };
            assert_eq!(resolve(text, PASSWD, GROUP), Ok(expect), "{text}");
        };
        check("", 0, 0, &[]);
        check("root", 0, 0, &[]);
        check("web", 100, 101, &[4]);
        check("100", 100, 101, &[4]);
        check("web:", 100, 101, &[4]);
        check("web:disk", 100, 6, &[]);
        check("5:7", 5, 7, &[]);
        check("5", 5, 0, &[]);
        check(":logs", 0, 4, &[]);
        // a user whose name is a number
        check("1000", 7, 8, &[]);
        assert_eq!(resolve("5", "", ""), Ok(User { uid: 5, ..User::default() }));
    }

    #[test]
    fn context_counts_before_the_image() {
        let security = |user, group, groups: &[u32]| Security {
            user,
            group,
            groups: groups.to_vec(),
            ..Security::default()
        };
        let check = |security: &Security, image: &str, uid, gid, groups: &[u32]| {
            let expect = User { uid, gid, groups: groups.to_vec() };
            assert_eq!(user_of(security, image, PASSWD, GROUP), Ok(expect), "{image} {security:?}");
        };
        check(&security(None, None, &[]), "web", 100, 101, &[4]);
        check(&security(Some(5), None, &[9, 3]), "web", 5, 0, &[3, 9]);
        check(&security(Some(100), Some(7), &[4]), "", 100, 7, &[4]);
        check(&security(None, Some(7), &[]), "web:disk", 100, 7, &[]);
        let strict = Security { without_groups_of_image: true, ..security(None, None, &[8]) };
        check(&strict, "web", 100, 101, &[8]);
        for (user, image, why) in [
            (None, "", "image will run as root"),
            (None, "0", "image will run as root"),
            (None, "web", "non-numeric user (web)"),
            (Some(0), "100", "breaks non-root policy"),
        ] {
            let security = Security { must_not_be_root: true, ..security(user, None, &[]) };
            let error = user_of(&security, image, PASSWD, GROUP).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let by_number = Security { must_not_be_root: true, ..Security::default() };
        check(&by_number, "100", 100, 101, &[4]);
        check(&Security { user: Some(9), ..by_number }, "root", 9, 0, &[]);
    }

    #[test]
    fn unknown_user_or_group_is_named() {
        for text in ["nobody", "+1", "-1", "2147483648", "99999999999", "web:nobody", " web"] {
            let error = resolve(text, PASSWD, GROUP).unwrap_err();
            assert!(error.contains("is not in the image's /etc/"), "{text}: {error}");
        }
    }
}
