#!/bin/sh
exec sh "${0%/*}/../prepare.sh" "Which of the two amounts counts :: the user decides" "Total by region"
