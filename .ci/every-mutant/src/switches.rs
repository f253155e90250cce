//! Puts a switch around each mutant: `(if mutant::on(7) { a != b } else { a == b })`.
//!
//! Each file is read as a tree, since the list knows only where an operator stands, not what it joins. Text around what is
//! mutated stays as it is. A mutant's own text stands between `/*<7*/` and `/*7>*/`, by which `compile` finds whose fault an
//! error is.

use crate::Listed;
use proc_macro2::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Writes the mutants of these numbers into the files below `root`; gives the numbers that have a switch now.
pub(crate) fn write(
    root: &Path,
    listed: &[Listed],
    numbers: &BTreeSet<usize>,
) -> Result<BTreeSet<usize>, String> {
    let mut by_file: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for number in numbers {
        by_file.entry(&listed[*number].file).or_default().push(*number);
    }
    let mut written = BTreeSet::new();
    for (path, numbers) in by_file {
        let path = root.join(path);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut asked: BTreeMap<(String, usize), Vec<Mutant>> = BTreeMap::new();
        for number in numbers {
            let Listed { genre, replacement, line, column, returns, .. } = &listed[number];
            // no second type fits where the compiler chose one
            if genre != "FnValue" || !returns.contains("impl ") {
                let mutant = Mutant { number, replacement: replacement.clone() };
                asked.entry((genre.clone(), offset(&text, *line, *column))).or_default().push(mutant);
            }
        }
        let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut file = File { asked, edits: Edits::default(), in_const: 0 };
        file.visit_file(&syntax);
        let rendered = Render { text: &text, edits: &file.edits }.render(0..text.len(), true, None);
        std::fs::write(&path, rendered).map_err(|error| format!("{}: {error}", path.display()))?;
        written.extend(file.edits.written);
    }
    Ok(written)
}

fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    start + text[start..].chars().take(column - 1).map(char::len_utf8).sum::<usize>()
}

struct Mutant {
    number: usize,
    replacement: String,
}

enum Node {
    Binary { left: Range<usize>, op: Range<usize>, right: Range<usize>, mutants: Vec<Mutant> },
    Unary { operand: Range<usize>, number: usize },
}

#[derive(Default)]
struct Edits {
    nodes: Vec<(Range<usize>, Node)>,
    insertions: BTreeMap<usize, String>,
    written: BTreeSet<usize>,
}

/// What is asked of one file, by where it begins.
struct File {
    asked: BTreeMap<(String, usize), Vec<Mutant>>,
    edits: Edits,
    in_const: usize,
}

fn range(span: Span) -> Range<usize> {
    span.byte_range()
}

fn switch(number: usize) -> String {
    format!("crate::mutant::on({number})")
}

impl File {
    fn take(&mut self, genre: &str, at: usize) -> Vec<Mutant> {
        if self.in_const > 0 {
            return Vec::new();
        }
        let mutants = self.asked.remove(&(genre.to_owned(), at)).unwrap_or_default();
        self.edits.written.extend(mutants.iter().map(|mutant| mutant.number));
        mutants
    }

    /// Looks at what lies within something; no switch can stand in a constant.
    fn within(&mut self, is_constant: bool, look: impl FnOnce(&mut Self)) {
        self.in_const += usize::from(is_constant);
        look(self);
        self.in_const -= usize::from(is_constant);
    }

    fn insert(&mut self, at: usize, text: &str) {
        self.edits.insertions.entry(at).or_default().push_str(text);
    }

    fn function(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let at = range(first.span()).start;
        for mutant in self.take("FnValue", at) {
            let number = mutant.number;
            let text = format!(
                "if {} {{ /*<{number}*/ return {}; /*{number}>*/ }} ",
                switch(number),
                mutant.replacement
            );
            self.insert(at, &text);
        }
    }
}

impl<'ast> Visit<'ast> for File {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.within(true, |file| visit::visit_item_const(file, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.within(true, |file| visit::visit_item_static(file, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.within(true, |file| visit::visit_impl_item_const(file, item));
    }

    fn visit_type(&mut self, item: &'ast syn::Type) {
        self.within(true, |file| visit::visit_type(file, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(item.sig.constness.is_some(), |file| {
            file.function(&item.block);
            visit::visit_item_fn(file, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.within(item.sig.constness.is_some(), |file| {
            file.function(&item.block);
            visit::visit_impl_item_fn(file, item);
        });
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        let chain = |side: &syn::Expr| has_let(side);
        if !chain(&expr.left) && !chain(&expr.right) {
            let op = range(expr.op.span());
            let mutants = self.take("BinaryOperator", op.start);
            if !mutants.is_empty() {
                let node = Node::Binary {
                    left: range(expr.left.span()),
                    op,
                    right: range(expr.right.span()),
                    mutants,
                };
                self.edits.nodes.push((range(expr.span()), node));
            }
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        for mutant in self.take("UnaryOperator", range(expr.op.span()).start) {
            let node = Node::Unary { operand: range(expr.expr.span()), number: mutant.number };
            self.edits.nodes.push((range(expr.span()), node));
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let deleted = self.take("MatchArm", range(arm.span()).start);
        let mut keep = String::new();
        for mutant in &deleted {
            let _ = write!(keep, "!{} && ", switch(mutant.number));
        }
        match &arm.guard {
            Some((_, guard)) => {
                let span = range(guard.span());
                let mutants = self.take("MatchArmGuard", span.start);
                let (mut yes, mut no) = (String::new(), String::new());
                for mutant in &mutants {
                    match mutant.replacement.as_str() {
                        "true" => write!(yes, "{} || ", switch(mutant.number)),
                        _ => write!(no, "!{} && ", switch(mutant.number)),
                    }
                    .expect("a string takes it");
                }
                self.insert(span.start, &format!("{keep}({yes}{no}("));
                self.insert(span.end, "))");
            }
            None if !keep.is_empty() => {
                let at = range(arm.pat.span()).end;
                self.insert(at, &format!(" if {}", keep.trim_end_matches(" && ")));
            }
            None => {}
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        if let Some(rest) = &expr.rest {
            let rest = rest.span().source_text().unwrap_or_default();
            for field in &expr.fields {
                for mutant in self.take("StructField", range(field.span()).start) {
                    let span = range(field.expr.span());
                    let syn::Member::Named(name) = &field.member else { continue };
                    let shorthand =
                        if field.colon_token.is_none() { format!("{name}: ") } else { String::new() };
                    let number = mutant.number;
                    let text = format!(
                        "{shorthand}if {} {{ /*<{number}*/ ({rest}).{name}.clone() /*{number}>*/ }} else {{ ",
                        switch(number)
                    );
                    self.insert(span.start, &text);
                    self.insert(span.end, " }");
                }
            }
        }
        visit::visit_expr_struct(self, expr);
    }
}

fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

struct Render<'a> {
    text: &'a str,
    edits: &'a Edits,
}

impl Render<'_> {
    /// The text of a range with its edits; `outer` says whether insertions at its two ends belong to it.
    fn render(&self, within: Range<usize>, outer: bool, skip: Option<usize>) -> String {
        let mut out = String::new();
        let mut at = within.start;
        while at < within.end {
            let next = self
                .edits
                .nodes
                .iter()
                .enumerate()
                .filter(|(index, (span, _))| {
                    Some(*index) != skip && span.start >= at && span.end <= within.end
                })
                .filter(|(index, (span, _))| {
                    // inside the same range again: only what lies deeper
                    skip.is_none_or(|skip| {
                        let outer = &self.edits.nodes[skip].0;
                        *span != *outer || *index > skip
                    })
                })
                .min_by_key(|(index, (span, _))| (span.start, usize::MAX - span.end, *index));
            match next {
                Some((index, (span, node))) => {
                    out.push_str(&self.plain(at..span.start, outer || at > within.start, true));
                    out.push_str(&self.node(node, index));
                    at = span.end;
                }
                None => {
                    out.push_str(&self.plain(at..within.end, outer || at > within.start, outer));
                    return out;
                }
            }
        }
        if outer && let Some(text) = self.edits.insertions.get(&at) {
            out.push_str(text);
        }
        out
    }

    /// Text without nodes: insertions inside it, and at its ends where asked for.
    fn plain(&self, span: Range<usize>, first: bool, last: bool) -> String {
        let mut out = String::new();
        let mut at = span.start;
        for (place, text) in self.edits.insertions.range(span.start..=span.end) {
            let wanted = if *place == span.start {
                first
            } else if *place == span.end {
                last
            } else {
                true
            };
            if wanted {
                out.push_str(&self.text[at..*place]);
                out.push_str(text);
                at = *place;
            }
        }
        out.push_str(&self.text[at..span.end]);
        out
    }

    fn node(&self, node: &Node, index: usize) -> String {
        match node {
            Node::Binary { left, op, right, mutants } => {
                let left = self.render(left.clone(), false, Some(index));
                let right = self.render(right.clone(), false, Some(index));
                let mut out = String::from("(");
                for mutant in mutants {
                    let number = mutant.number;
                    let _ = write!(
                        out,
                        "if {} {{ /*<{number}*/ ({left}) {} ({right}) /*{number}>*/ }} else ",
                        switch(number),
                        mutant.replacement
                    );
                }
                let _ = write!(out, "{{ ({left}) {} ({right}) }})", &self.text[op.clone()]);
                out
            }
            Node::Unary { operand, number } => {
                let whole = &self.edits.nodes[index].0;
                let operand_text = self.render(operand.clone(), false, Some(index));
                let op = &self.text[whole.start..operand.start];
                format!(
                    "(if {} {{ /*<{number}*/ {operand_text} /*{number}>*/ }} else {{ {op}{operand_text} }})",
                    switch(*number)
                )
            }
        }
    }
}
