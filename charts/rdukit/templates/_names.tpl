{{/* Names and labels. Suffixes and a box's name (24) keep within the 63 characters of a DNS label. */}}
{{- define "rdukit.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "rdukit" .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rdukit" (.Release.Name | replace "." "-" | trunc 23 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "rdukit.selector" -}}
app.kubernetes.io/name: rdukit
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- with .box }}
rdukit.dev/box: {{ . }}
{{- end }}
{{- end -}}

{{- define "rdukit.labels" -}}
{{ include "rdukit.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "rdukit.image" -}}
{{- $image := .image -}}
{{- $name := $image.repository -}}
{{- with .root.Values.images.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "rdukit.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "rdukit.fullname" .) -}}
{{- end -}}

{{/* Of the worker, where it starts pods. */}}
{{- define "rdukit.workerAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.worker | default (printf "%s-worker" (include "rdukit.fullname" .)) -}}
{{- else -}}
{{- required "serviceAccount.worker: name an account of the worker's own, which may start pods, or set jobs.boxes: worker" .Values.serviceAccount.worker -}}
{{- end -}}
{{- end -}}

{{- define "rdukit.homeClaim" -}}
{{- .Values.home.existingClaim | default (printf "%s-home" (include "rdukit.fullname" .)) -}}
{{- end -}}

{{- define "rdukit.secret" -}}
{{- .Values.secrets.existing | default (printf "%s-generated" (include "rdukit.fullname" .)) -}}
{{- end -}}

{{/* A box's entry over the defaults; its image and its box filled in. */}}
{{- define "rdukit.box" -}}
{{- $box := mergeOverwrite (deepCopy .root.Values.boxDefaults) (deepCopy .entry) -}}
{{- if not $box.box }}{{ $_ := set $box "box" $box.name }}{{ end -}}
{{- if not $box.image.repository }}{{ $_ := set $box "image" .root.Values.images.modelbox }}{{ end -}}
{{- $box | toYaml -}}
{{- end -}}
