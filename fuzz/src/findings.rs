//! Inputs that once broke a promise and must not do so again. Each is replayed by its target in every test
//! run.

/// An input that once broke a promise.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    pub target: &'static str,
    /// The broken promise, and its fix.
    pub story: &'static str,
    /// The input, reduced as far as possible.
    pub input: &'static [u8],
}

/// All findings.
pub const FINDINGS: &[Finding] = &[
    Finding {
        target: "source",
        story: "the kind of a reference reached the condition and the log with its control characters; they are escaped",
        input: b"K\x1e{\"configMapRef\":{\"kind\":\"a\\u0000\\n\",\"namespace\":\"n\",\"name\":\"m\",\"uid\":\"u\"}}\x1e",
    },
    Finding {
        target: "source",
        story: "a name \".\" was accepted, although it cannot be a segment of a path; it is refused, as upstream does",
        input: b"K\x1e{\"configMap\":{\"namespace\":\".\",\"name\":\"m\",\"kubeletConfigKey\":\"k\"}}\x1e",
    },
    Finding {
        target: "yaml",
        story: "a tag with %00 put a NUL into the error, and a long tag its whole length; it is escaped and shortened",
        input: b"a: !s%00 x",
    },
    Finding {
        target: "node",
        story: "a change of server during GET /version sent a second one, and took the old server's answer for the new \
                one's; late answers are ignored",
        input: b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x11\x01\x11\x01",
    },
    Finding {
        target: "hub_store",
        story: "with an object newer than the store's marks, the hub counted on from the marks and used a version twice; it \
                counts on from the newest object",
        input: b"r\0\0\0\0\0\0\0\0nodes\x1e\x1ea\x1e\x7f\x1e{\"metadata\":{\"name\":\"a\"}}",
    },
    Finding {
        target: "local_endpoint",
        story: "the body of a GET was passed on; it is read and dropped",
        input: b"GET /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nab",
    },
    Finding {
        target: "records",
        story: "the reader's error repeated a text of the file in full, and reached the condition; descriptions of damage \
                are shortened (also for the exit record and a server's answers)",
        input: LONG_TEXT_FOR_A_FLAG,
    },
    Finding {
        target: "hub_patch",
        story: "a $setElementOrder of a directive left the directive in the object; it is refused as malformed",
        input: b"\x03s{}\x1e{\"x\":{\"$setElementOrder/$deleteFromPrimitiveList/f\":[]}}",
    },
    Finding {
        target: "hub_patch",
        story: "directives within items of a list merged as a set stayed in the object; they are removed",
        input: b"\x03s{}\x1e{\"x\":{\"$setElementOrder/f\":[{\"$retainKeys\":[]}],\"f\":[{\"$retainKeys\":[]}]}}",
    },
    Finding {
        target: "call_answer",
        story: "a node that refused without a text gave an error without one, and kubectl showed \"Error from server:\" alone; \
                the hub says that there was no reason",
        input: b"gHTTP/1.1 400 \r\n\r\n",
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
