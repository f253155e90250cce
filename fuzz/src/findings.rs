//! What fuzzing found, as inputs that must stay harmless. Each is replayed by its target in every test run.

/// An input that once broke a promise.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The target it is for.
    pub target: &'static str,
    /// What went wrong, and what was done about it.
    pub story: &'static str,
    /// The input, as small as it could be made.
    pub input: &'static [u8],
}

/// All findings.
pub const FINDINGS: &[Finding] = &[
    Finding {
        target: "source",
        story: "the kind of a reference stood as it was, control characters and all, in the condition and the log; it is \
                escaped",
        input: b"K\x1e{\"configMapRef\":{\"kind\":\"a\\u0000\\n\",\"namespace\":\"n\",\"name\":\"m\",\"uid\":\"u\"}}\x1e",
    },
    Finding {
        target: "source",
        story: "a name \".\" passed as one, although it is no segment of a path; it is refused, as upstream refuses it",
        input: b"K\x1e{\"configMap\":{\"namespace\":\".\",\"name\":\"m\",\"kubeletConfigKey\":\"k\"}}\x1e",
    },
    Finding {
        target: "yaml",
        story: "a tag with %00 put a NUL into the error, and a long tag its whole length; it is escaped and shortened",
        input: b"a: !s%00 x",
    },
    Finding {
        target: "node",
        story: "another server while GET /version is on its way: a second one went out, and the old server's answer was \
                taken for the new one's; late answers now say nothing",
        input: b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x11\x01\x11\x01",
    },
    Finding {
        target: "hub_store",
        story: "an object newer than the store's marks: the hub counted on from the marks, and a version meant two things; it \
                counts on from the newest object",
        input: b"r\0\0\0\0\0\0\0\0nodes\x1e\x1ea\x1e\x7f\x1e{\"metadata\":{\"name\":\"a\"}}",
    },
    Finding {
        target: "local_endpoint",
        story: "a GET with a body was handed on with it, though a GET has none; it is read and dropped",
        input: b"GET /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nab",
    },
    Finding {
        target: "records",
        story: "the reader's error repeated a text of the file at its whole length, on its way into the condition; what is \
                said of damage is shortened (in the exit record and in answers of a server as well)",
        input: LONG_TEXT_FOR_A_FLAG,
    },
    Finding {
        target: "hub_patch",
        story: "an order of a directive, not of a list, left the directive in the object; it is refused as malformed",
        input: b"\x03s{}\x1e{\"x\":{\"$setElementOrder/$deleteFromPrimitiveList/f\":[]}}",
    },
    Finding {
        target: "hub_patch",
        story: "directives within the items of a list merged as a set stayed in them; they are taken out",
        input: b"\x03s{}\x1e{\"x\":{\"$setElementOrder/f\":[{\"$retainKeys\":[]}],\"f\":[{\"$retainKeys\":[]}]}}",
    },
];

const LONG_TEXT_FOR_A_FLAG: &[u8] = &{
    let (head, tail) = (b"c{\"local\":\"", b"\"}");
    let mut text = [b'x'; 1000];
    let mut at = 0;
    while at < head.len() {
        text[at] = head[at];
        at += 1;
    }
    text[998] = tail[0];
    text[999] = tail[1];
    text
};

/// The findings of one target.
pub fn of(target: &str) -> impl Iterator<Item = &'static Finding> {
    FINDINGS.iter().filter(move |finding| finding.target == target)
}
