// Package docs runs what the documents print: every fenced block of README.md, of
// docs and of the READMEs of examples, in the order in which a reader comes to
// them, in a folder of their own that has bin/govnode and the examples.
//
// The first word behind a fence says what the block is, as on GitHub. The words
// behind it say how it is run:
//
//	sh                       a script; functions and variables last to the end of the document
//	sh exit=1                its last command ends with 1; those before may fail, too
//	sh terminal              it runs until the document ends, as in a terminal of its own
//	sh until="ready"         it is waited for until it prints that
//	go                       a whole file; it is vetted, and run if it is a program and no file
//	yaml                     a policy; `govnode policy validate` takes it without a warning
//	yaml alerts              rules for Prometheus; every metric in them is documented
//	json                     is read
//	json output              is in what the script above printed, in order; more fields may be
//	text output              so are its lines
//	text picture             is looked at
//	redis                    commands for the redis-server that the document has started
//	cedar, rego, python, ini, conf
//	                         only as a file
//	ANY file=NAME            is written to the file, for the scripts that follow
//	ANY norun reason=WHY     is not run; at most ten in all
//
// In what is shown as output … stands for anything. Ports 7070 to 7099 are moved
// to free ones, so that documents run beside each other and beside other things.
// What a document needs and the machine lacks (curl, python3, redis-server) makes
// its test skip, or fail if GOVNODE_REQUIRE_DOCS is set.
//
// The package has no code of its own and imports none of the product.
package docs
