#!/bin/sh
exec sh "${0%/*}/../prepare.sh" "Which of the two amounts counts :: is for the person to decide" "Total by region"
