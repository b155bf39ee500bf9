//! `#[derive(Coded)]` implements `types::Coded` for an error: its code, and what other components act on.
//!
//! A variant's code is its name in kebab-case, or the expression of `#[code(…)]`. `#[code(of = FIELD)]` takes all from the error in a field, where
//! `_0` is the first field without a name. `#[code(…)]`, `#[detail(…)]` and `#[parts(…)]` see the fields by their names, as references. Above an
//! enum, an attribute is for the variants without their own.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Expr, ExprAssign, Fields, parse_macro_input};

#[proc_macro_derive(Coded, attributes(code, detail, parts))]
pub fn derive_coded(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implement_coded(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn implement_coded(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut arms = [TokenStream::new(), TokenStream::new(), TokenStream::new()];
    let mut add =
        |variant: TokenStream, name: &Ident, fields: &Fields, attributes: &[&Attribute]| {
            let pattern = bound_fields(fields);
            let values = values_of(name, attributes)?;
            for (arms, value) in arms.iter_mut().zip(values) {
                arms.extend(value.map(|value| quote!(#variant #pattern => #value,)));
            }
            syn::Result::Ok(())
        };
    match &input.data {
        Data::Enum(data) => {
            for variant in &data.variants {
                let name = &variant.ident;
                let attributes: Vec<_> = input.attrs.iter().chain(&variant.attrs).collect();
                add(quote!(Self::#name), name, &variant.fields, &attributes)?;
            }
        }
        Data::Struct(data) => {
            let attributes: Vec<_> = input.attrs.iter().collect();
            add(quote!(Self), &input.ident, &data.fields, &attributes)?;
        }
        Data::Union(_) => return Err(Error::new(input.span(), "a union is no error")),
    }
    let [code, detail, parts] = arms;
    let (name, (generics, arguments, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        #[allow(unused_variables, unreachable_patterns)]
        impl #generics ::types::Coded for #name #arguments #bounds {
            fn code(&self) -> &'static str {
                match self { #code }
            }
            fn detail(&self) -> ::types::Detail {
                match self { #detail _ => ::types::Detail::None }
            }
            fn parts(&self) -> Vec<::types::Problem> {
                match self { #parts _ => Vec::new() }
            }
        }
    })
}

/// Fields without names are bound to `_0`, `_1` and so on.
fn bound_fields(fields: &Fields) -> TokenStream {
    let names = fields.iter().enumerate().map(|(at, field)| match &field.ident {
        Some(name) => name.clone(),
        None => format_ident!("_{at}"),
    });
    match fields {
        Fields::Named(_) => quote!({ #(#names),* }),
        Fields::Unnamed(_) => quote!((#(#names),*)),
        Fields::Unit => TokenStream::new(),
    }
}

/// The code of a variant, its detail and its parts, each as an expression.
fn values_of(name: &Ident, attributes: &[&Attribute]) -> syn::Result<[Option<TokenStream>; 3]> {
    let code = kebab_case(&name.to_string());
    let mut values = [Some(quote!(#code)), None, None];
    for attribute in attributes {
        let Some(at) =
            ["code", "detail", "parts"].iter().position(|word| attribute.path().is_ident(word))
        else {
            continue;
        };
        match (at, attribute.parse_args()?) {
            (0, Expr::Assign(ExprAssign { right: field, .. })) => {
                values = ["code", "detail", "parts"].map(|method| {
                    let method = Ident::new(method, field.span());
                    Some(quote!(::types::Coded::#method(#field)))
                });
            }
            (_, value) => {
                if let Some(slot) = values.get_mut(at) {
                    *slot = Some(quote!(#value));
                }
            }
        }
    }
    Ok(values)
}

/// `NoSuchDevice` is `no-such-device`.
fn kebab_case(name: &str) -> String {
    let mut code = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !code.is_empty() {
            code.push('-');
        }
        code.extend(letter.to_lowercase());
    }
    code
}
