//! A PKCS#12 file (RFC 7292) of one certificate and its key, as browsers and keychains import it.
//!
//! Always holds: written only, never read; bags and integrity by one passphrase. Encryption is Triple DES
//! with the format's own key derivation and SHA-1, which is old, because it is what every importer takes:
//! macOS before 15 refuses AES, and OpenSSL 3 the still older RC2. So the strength is that of the passphrase,
//! which is made here and never chosen by a person. Left to others: the file, and showing the passphrase once.

use des::TdesEde3;
use des::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use ring::rand::SecureRandom;
use ring::{digest, hmac};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, Tag, construct_der};

/// Rounds of the key derivation; OpenSSL's number. More would not help a random passphrase.
const ROUNDS: u32 = 2048;
const SALT_BYTES: usize = 16;
/// Block of SHA-1, by which the key derivation works.
const HASH_BLOCK: usize = 64;
const HASH_BYTES: usize = 20;
const CIPHER_BLOCK: usize = 8;
/// Letters of a passphrase: none that looks like another one.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// 120 bits.
const PASSPHRASE_LETTERS: usize = 24;

const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
const ENCRYPTED_DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 6];
const TRIPLE_DES: &[u64] = &[1, 2, 840, 113_549, 1, 12, 1, 3];
const SHROUDED_KEY_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 2];
const CERTIFICATE_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 3];
const X509_CERTIFICATE: &[u64] = &[1, 2, 840, 113_549, 1, 9, 22, 1];
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 20];
const LOCAL_KEY_ID: &[u64] = &[1, 2, 840, 113_549, 1, 9, 21];
const SHA1: &[u64] = &[1, 3, 14, 3, 2, 26];

/// What a derived value is for; numbers of RFC 7292, appendix B.3.
#[derive(Clone, Copy)]
enum Purpose {
    Key = 1,
    Vector = 2,
    Integrity = 3,
}

/// A new passphrase.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn passphrase(random: &dyn SecureRandom) -> Result<String, ring::error::Unspecified> {
    let mut bytes = [0; PASSPHRASE_LETTERS];
    random.fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

/// The file. `name` is shown by the importer; `certificate` and `key` (PKCS#8) are DER.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn file(
    name: &str,
    certificate: &[u8],
    key: &[u8],
    passphrase: &str,
    random: &dyn SecureRandom,
) -> Result<Vec<u8>, ring::error::Unspecified> {
    let mut salts = [[0; SALT_BYTES]; 3];
    for salt in &mut salts {
        random.fill(salt)?;
    }
    let [of_certificate, of_key, of_integrity] = salts;
    // by which the importer finds the certificate of a key
    let id = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, certificate);
    let attributes = |writer: DERWriter<'_>| attributes(writer, name, id.as_ref());
    let certificates = construct_der(|writer| {
        writer.write_sequence_of(|writer| {
            writer.next().write_sequence(|writer| {
                oid(writer.next(), CERTIFICATE_BAG);
                explicit(writer.next(), |writer| {
                    writer.write_sequence(|writer| {
                        oid(writer.next(), X509_CERTIFICATE);
                        explicit(writer.next(), |writer| writer.write_bytes(certificate));
                    });
                });
                attributes(writer.next());
            });
        });
    });
    let keys = construct_der(|writer| {
        writer.write_sequence_of(|writer| {
            writer.next().write_sequence(|writer| {
                oid(writer.next(), SHROUDED_KEY_BAG);
                explicit(writer.next(), |writer| {
                    writer.write_sequence(|writer| {
                        algorithm(writer.next(), &of_key);
                        writer.next().write_bytes(&encrypted(key, passphrase, &of_key));
                    });
                });
                attributes(writer.next());
            });
        });
    });
    let safe = construct_der(|writer| {
        writer.write_sequence_of(|writer| {
            writer.next().write_sequence(|writer| {
                oid(writer.next(), ENCRYPTED_DATA);
                explicit(writer.next(), |writer| {
                    writer.write_sequence(|writer| {
                        writer.next().write_u8(0);
                        writer.next().write_sequence(|writer| {
                            oid(writer.next(), DATA);
                            algorithm(writer.next(), &of_certificate);
                            let content = encrypted(&certificates, passphrase, &of_certificate);
                            writer.next().write_tagged_implicit(Tag::context(0), |writer| {
                                writer.write_bytes(&content)
                            });
                        });
                    });
                });
            });
            content(writer.next(), &keys);
        });
    });
    let mac = derived(Purpose::Integrity, passphrase, &of_integrity, HASH_BYTES);
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &mac), &safe);
    Ok(construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(3);
            content(writer.next(), &safe);
            writer.next().write_sequence(|writer| {
                writer.next().write_sequence(|writer| {
                    writer.next().write_sequence(|writer| {
                        oid(writer.next(), SHA1);
                        writer.next().write_null();
                    });
                    writer.next().write_bytes(mac.as_ref());
                });
                writer.next().write_bytes(&of_integrity);
                writer.next().write_u32(ROUNDS);
            });
        });
    }))
}

fn oid(writer: DERWriter<'_>, numbers: &[u64]) {
    writer.write_oid(&ObjectIdentifier::from_slice(numbers));
}

fn explicit(writer: DERWriter<'_>, inner: impl FnOnce(DERWriter<'_>)) {
    writer.write_tagged(Tag::context(0), inner);
}

/// Plain content.
fn content(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_sequence(|writer| {
        oid(writer.next(), DATA);
        explicit(writer.next(), |writer| writer.write_bytes(bytes));
    });
}

fn algorithm(writer: DERWriter<'_>, salt: &[u8]) {
    writer.write_sequence(|writer| {
        oid(writer.next(), TRIPLE_DES);
        writer.next().write_sequence(|writer| {
            writer.next().write_bytes(salt);
            writer.next().write_u32(ROUNDS);
        });
    });
}

fn attributes(writer: DERWriter<'_>, name: &str, id: &[u8]) {
    writer.write_set_of(|writer| {
        writer.next().write_sequence(|writer| {
            oid(writer.next(), FRIENDLY_NAME);
            writer.next().write_set_of(|writer| writer.next().write_bmp_string(name));
        });
        writer.next().write_sequence(|writer| {
            oid(writer.next(), LOCAL_KEY_ID);
            writer.next().write_set_of(|writer| writer.next().write_bytes(id));
        });
    });
}

/// Triple DES in CBC mode, padded as PKCS#7 does.
fn encrypted(plain: &[u8], passphrase: &str, salt: &[u8]) -> Vec<u8> {
    let key = derived(Purpose::Key, passphrase, salt, 3 * CIPHER_BLOCK);
    let cipher = TdesEde3::new_from_slice(&key).expect("the key has the length of three DES keys");
    let mut last = derived(Purpose::Vector, passphrase, salt, CIPHER_BLOCK);
    let padding = CIPHER_BLOCK - plain.len() % CIPHER_BLOCK;
    let mut padded = plain.to_vec();
    padded.resize(plain.len() + padding, u8::try_from(padding).expect("a block is short"));
    let mut out = Vec::with_capacity(padded.len());
    for block in padded.chunks(CIPHER_BLOCK) {
        let mixed: Vec<u8> = block.iter().zip(&last).map(|(one, other)| one ^ other).collect();
        let mut block =
            des::cipher::Block::<TdesEde3>::try_from(&mixed[..]).expect("it has the block's length");
        cipher.encrypt_block(&mut block);
        last = block.to_vec();
        out.extend_from_slice(&last);
    }
    out
}

/// RFC 7292, appendix B.2.
fn derived(purpose: Purpose, passphrase: &str, salt: &[u8], length: usize) -> Vec<u8> {
    // as a BMPString with a final zero
    let password: Vec<u8> = passphrase.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect();
    let filled = |bytes: &[u8]| -> Vec<u8> {
        let whole = bytes.len().div_ceil(HASH_BLOCK) * HASH_BLOCK;
        bytes.iter().copied().cycle().take(whole).collect()
    };
    let mut input = [filled(salt), filled(&password)].concat();
    let mut out = Vec::new();
    while out.len() < length {
        let mut hash = digest::digest(
            &digest::SHA1_FOR_LEGACY_USE_ONLY,
            &[&[purpose as u8; HASH_BLOCK][..], &input].concat(),
        );
        for _ in 1..ROUNDS {
            hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, hash.as_ref());
        }
        out.extend_from_slice(hash.as_ref());
        let added: Vec<u8> = hash.as_ref().iter().copied().cycle().take(HASH_BLOCK).collect();
        for block in input.chunks_mut(HASH_BLOCK) {
            let mut carry = 1_u16;
            for (byte, more) in block.iter_mut().zip(&added).rev() {
                let sum = u16::from(*byte) + u16::from(*more) + carry;
                *byte = sum.to_be_bytes()[1];
                carry = sum >> 8;
            }
        }
    }
    out.truncate(length);
    out
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use kedge_rig::Scratch;
    use ring::rand::SystemRandom;

    use super::*;

    /// The files of names and passphrases that OpenSSL reads, and no other passphrase opens.
    #[test]
    fn openssl_reads_the_file_by_its_passphrase_alone() {
        let scratch = Scratch::new("hub-pkcs12").unwrap();
        let random = SystemRandom::new();
        for name in
            ["jane", "jane@example.com", "a-name-of-sixty-four-characters-which-is-the-longest-of-users-123"]
        {
            let pair = rcgen::KeyPair::generate().unwrap();
            let made = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&pair).unwrap();
            let passphrase = passphrase(&random).unwrap();
            assert_eq!(passphrase.len(), PASSPHRASE_LETTERS);
            let bytes = file(name, made.der(), &pair.serialize_der(), &passphrase, &random).unwrap();
            let path = scratch.join("person.p12");
            std::fs::write(&path, bytes).unwrap();
            let read = |passphrase: &str| {
                let mut openssl = Command::new("openssl");
                openssl
                    .args(["pkcs12", "-nodes", "-passin", &format!("pass:{passphrase}"), "-in"])
                    .arg(&path);
                openssl.output().expect("openssl is installed")
            };
            let found = read(&passphrase);
            let text = String::from_utf8_lossy(&found.stdout);
            assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
            let lines = |pem: &str| pem.lines().map(str::to_owned).collect::<Vec<_>>().concat();
            for pem in [made.pem(), pair.serialize_pem()] {
                let inner = pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
                assert!(lines(&text).contains(&inner), "{text}");
            }
            assert!(text.contains(&format!("friendlyName: {name}")), "{text}");
            for wrong in ["", "x", &passphrase[1..]] {
                assert!(!read(wrong).status.success(), "{wrong}");
            }
        }
    }
}
